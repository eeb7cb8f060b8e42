# ruff: noqa: ARG001  # signatures are those of torch
# torch leaves these functions untyped:
# mypy: disable-error-code="no-untyped-call"
"""What the CPU computes in place of ops that only CUDA has, one row an op.

An equivalent takes the arguments of the op, as CPU tensors, and returns what the op returns. A number in place of a
tensor fills it, and None leaves the tensor without values. The attention and the recurrent networks are in
`cpu_attention` and `cpu_recurrent`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from optrace.tracing.standin import cpu_attention, cpu_recurrent

aten = torch.ops.aten


LinAlgError: type[RuntimeError] = torch.linalg.LinAlgError  # type: ignore[attr-defined]  # missing in the stubs


@dataclass(frozen=True, slots=True)
class Equivalent:
    """A function for the CPU, and the positions of arguments that it does not read."""

    run: Callable[..., Any]
    unread: frozenset[int] = frozenset()


class CannotComputeError(RuntimeError):
    """The CPU has no kernel for an op, or for these arguments."""


def computed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What `func` returns for CPU tensors; raises CannotComputeError where the CPU has no way to compute it."""
    run = EQUIVALENTS[func].run if func in EQUIVALENTS else func
    try:
        with torch._C._DisableAutocast():
            return run(*args, **kwargs)
    except LinAlgError:
        raise  # the user's matrix is singular, as it would be on a GPU
    except RuntimeError as error:
        raise CannotComputeError(f"{func} ({str(error).partition(chr(10))[0]})") from error


def _cudnn_batch_norm(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Sequence[Any]:
    out = aten.native_batch_norm.default(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )
    return (*out, None)


def _cudnn_batch_norm_backward(
    input: Tensor,
    grad: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor,
    save_invstd: Tensor,
    eps: float,
    reserve: Any,
) -> Any:
    return aten.native_batch_norm_backward.default(
        grad,
        input,
        weight,
        running_mean,
        running_var,
        save_mean,
        save_invstd,
        True,
        eps,
        [True, True, True],
    )


def _wide(t: Tensor) -> Tensor:
    return t if t.dtype == torch.float64 else t.float()


def _fused_rms_norm(
    input: Tensor, normalized: Sequence[int], weight: Tensor | None, eps: float | None
) -> Any:
    dims = list(range(input.dim() - len(normalized), input.dim()))
    wide = _wide(input)
    eps = torch.finfo(wide.dtype).eps if eps is None else eps
    rstd = (wide.square().mean(dims, keepdim=True) + eps).rsqrt()
    out = wide * rstd
    return (out if weight is None else out * weight).to(input.dtype), rstd


def _fused_rms_norm_backward(
    grad: Tensor,
    input: Tensor,
    normalized: Sequence[int],
    rstd: Tensor,
    weight: Tensor | None,
    mask: Sequence[bool],
) -> Any:
    kept = input.dim() - len(normalized)
    dims = list(range(kept, input.dim()))
    wide, wide_grad = _wide(input) * rstd, _wide(grad)
    scaled = wide_grad if weight is None else wide_grad * weight
    grad_input = rstd * (scaled - wide * (scaled * wide).mean(dims, keepdim=True))
    grad_weight = None
    if weight is not None and mask[1]:
        products = wide_grad * wide
        grad_weight = (products.sum(list(range(kept))) if kept else products).to(weight.dtype)
    return (grad_input.to(input.dtype) if mask[0] else None), grad_weight


_HALF = (torch.float16, torch.bfloat16)


def _in_float32(op: Any, written: Sequence[int] = ()) -> Callable[..., Any]:
    """`op` with half-precision arguments in float32, in which CUDA's norms compute and keep their statistics; the
    arguments at the positions `written` are updated in place."""

    def run(*args: Any) -> Any:
        wide = [a.float() if isinstance(a, Tensor) and a.dtype in _HALF else a for a in args]
        out = op(*wide)
        for i in written:
            if wide[i] is not args[i]:
                args[i].copy_(wide[i])
        return out

    return run


def _cudnn_grid_sampler(input: Tensor, grid: Tensor) -> Any:
    return aten.grid_sampler_2d.default(input, grid, 0, 0, True)


def _cudnn_grid_sampler_backward(input: Tensor, grid: Tensor, grad: Tensor) -> Any:
    return aten.grid_sampler_2d_backward.default(grad, input, grid, 0, 0, True, [True, True])


def _scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """One scale a tensor, or one a row of `a` and a column of `b`."""
    for scale, size in ((scale_a, (a.size(0), 1)), (scale_b, (1, b.size(1)))):
        if scale.numel() != 1 and tuple(scale.shape) != size:
            raise NotImplementedError("scales of blocks")
    out = (a.float() * scale_a) @ (b.float() * scale_b)
    if bias is not None:
        out = out + bias
    return out.to(out_dtype or a.dtype)


EQUIVALENTS: Mapping[Any, Equivalent] = {
    aten.cudnn_batch_norm.default: Equivalent(_cudnn_batch_norm),
    aten.cudnn_batch_norm_backward.default: Equivalent(_cudnn_batch_norm_backward, frozenset({8})),
    aten.native_batch_norm.default: Equivalent(_in_float32(aten.native_batch_norm.default, written=(3, 4))),
    aten.native_batch_norm_backward.default: Equivalent(_in_float32(aten.native_batch_norm_backward.default)),
    aten.native_layer_norm.default: Equivalent(_in_float32(aten.native_layer_norm.default)),
    aten.native_layer_norm_backward.default: Equivalent(_in_float32(aten.native_layer_norm_backward.default)),
    aten.native_group_norm.default: Equivalent(_in_float32(aten.native_group_norm.default)),
    aten.native_group_norm_backward.default: Equivalent(_in_float32(aten.native_group_norm_backward.default)),
    aten._fused_rms_norm.default: Equivalent(_fused_rms_norm),
    aten._fused_rms_norm_backward.default: Equivalent(_fused_rms_norm_backward),
    aten.cudnn_grid_sampler.default: Equivalent(_cudnn_grid_sampler),
    aten.cudnn_grid_sampler_backward.default: Equivalent(_cudnn_grid_sampler_backward),
    aten._scaled_mm.default: Equivalent(_scaled_mm),
    aten._scaled_dot_product_flash_attention.default: Equivalent(cpu_attention.flash),
    aten._scaled_dot_product_flash_attention_backward.default: Equivalent(
        cpu_attention.flash_backward, frozenset({6, 7, 13})
    ),
    aten._scaled_dot_product_cudnn_attention.default: Equivalent(cpu_attention.cudnn),
    aten._scaled_dot_product_cudnn_attention_backward.default: Equivalent(
        cpu_attention.cudnn_backward, frozenset({7, 9, 10})
    ),
    aten._scaled_dot_product_efficient_attention.default: Equivalent(cpu_attention.efficient),
    aten._scaled_dot_product_efficient_attention_backward.default: Equivalent(
        cpu_attention.efficient_backward, frozenset({8})
    ),
    aten._cudnn_rnn.default: Equivalent(cpu_recurrent.cudnn_rnn, frozenset({3, 15})),
    aten._cudnn_rnn_backward.default: Equivalent(cpu_recurrent.cudnn_rnn_backward, frozenset({3, 19})),
    aten._thnn_fused_lstm_cell.default: Equivalent(cpu_recurrent.lstm_cell),
    aten._thnn_fused_lstm_cell_backward_impl.default: Equivalent(cpu_recurrent.lstm_cell_backward),
    aten._thnn_fused_gru_cell.default: Equivalent(cpu_recurrent.gru_cell),
    aten._thnn_fused_gru_cell_backward.default: Equivalent(cpu_recurrent.gru_cell_backward),
}
