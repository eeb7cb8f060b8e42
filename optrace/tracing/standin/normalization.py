# ruff: noqa: ARG001  # signatures are those of torch
# torch leaves ops and these functions untyped:
# mypy: disable-error-code="no-untyped-call,no-any-return"
"""Which kernel batch normalization uses on the pretended GPU.

torch chooses in C++: cuDNN for CUDA tensors where it fits, its own kernel otherwise. The rule of
`_select_batch_norm_backend` is restated here.
"""

from __future__ import annotations

import torch
from torch import Tensor

aten = torch.ops.aten

CUDNN_MIN_EPSILON = 0.0  # cuDNN's CUDNN_BN_MIN_EPSILON since version 8
INT32_MAX = 2**31 - 1


def uses_cudnn(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    eps: float,
) -> bool:
    """Whether CUDA would hand this batch norm to cuDNN."""
    if weight is None or bias is None or not torch.backends.cudnn.enabled:
        return False
    if torch.bfloat16 in (input.dtype, weight.dtype):
        return False
    if input.dtype == torch.float16 and weight.dtype != torch.float32:
        return False
    has_mean, has_var = running_mean is not None, running_var is not None
    if has_mean != has_var or not (has_mean or training):
        return False
    batch_limit = 880_801 if training else 65_535  # grid sizes of cuDNN's spatial kernels
    return (
        input.dim() >= 3
        and input.size(0) <= batch_limit
        and eps >= CUDNN_MIN_EPSILON
        and input.numel() < INT32_MAX
    )


def _contiguous(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.contiguous()


def batch_norm_impl_index(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """`aten::_batch_norm_impl_index` for the pretended GPU: output, saved mean, saved variance, reserve, index."""
    if uses_cudnn(input, weight, bias, running_mean, running_var, training, eps):
        layout = torch._prims_common.suggest_memory_format(input)
        out, mean, var, reserve = aten.cudnn_batch_norm.default(
            input.contiguous(memory_format=layout),
            _contiguous(weight),
            _contiguous(bias),
            _contiguous(running_mean),
            _contiguous(running_var),
            training,
            momentum,
            eps,
        )
        return out, mean, var, reserve, 1
    reserve = aten.empty.memory_format([0], dtype=torch.uint8, layout=input.layout, device=input.device)
    out, mean, var = aten.native_batch_norm.default(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )
    return out, mean, var, reserve, 0
