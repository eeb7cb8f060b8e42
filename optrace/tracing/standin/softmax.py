# torch leaves ops untyped:
# mypy: disable-error-code="no-any-return"
"""Softmax, grid sampling and one-hot codes on the pretended GPU: kernels that CUDA takes a shorter way to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

BILINEAR, ZEROS = 0, 0  # the codes of `grid_sampler`'s modes
CUDNN_MAX_CHANNELS = 1024
INT32_MAX = 2**31 - 1


def _softmax(kernel: Any) -> Any:
    """CUDA's softmax reads half precision and writes float32 in one kernel, without a cast before."""

    def softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        fused = input.dtype == torch.float16 and dtype == torch.float32
        if dtype is not None and input.dtype != dtype and not fused:
            input = aten.to.dtype_layout(input, dtype=dtype, layout=input.layout, device=input.device)
        out: Tensor = kernel(input, dim, fused)
        return out

    return softmax


softmax = _softmax(aten._softmax.default)
log_softmax = _softmax(aten._log_softmax.default)


def grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """`aten::grid_sampler`: cuDNN's kernel where it fits."""
    fits = (
        torch.backends.cudnn.enabled
        and input.dim() == 4
        and input.size(1) <= CUDNN_MAX_CHANNELS
        and max(input.numel(), grid.numel()) <= INT32_MAX
        and input.dtype in (torch.float16, torch.float32, torch.float64)
        and interpolation_mode == BILINEAR
        and padding_mode == ZEROS
        and align_corners
    )
    if fits:
        return aten.cudnn_grid_sampler.default(input, grid)
    kernel = aten.grid_sampler_2d.default if input.dim() == 4 else aten.grid_sampler_3d.default
    return kernel(input, grid, interpolation_mode, padding_mode, align_corners)


def one_hot(indices: Tensor, num_classes: int = -1) -> Tensor:
    """`aten::one_hot`: ones scattered into zeros, where tensors with no contents are compared with a range."""
    if num_classes == -1:
        num_classes = int(indices.max().item()) + 1
    codes = aten.zeros.default(
        [*indices.shape, num_classes], dtype=indices.dtype, layout=indices.layout, device=indices.device
    )
    return aten.scatter_.value(codes, -1, indices.unsqueeze(-1), 1)
