# ruff: noqa: ARG001  # signatures are those of torch
# torch leaves ops and these functions untyped:
# mypy: disable-error-code="no-untyped-call,no-any-return"
"""Autocast on the pretended GPU: which ops cast their inputs, to what, and which casts are kept.

torch registers these rules per device in C++ (`autocast_mode.h`); a PrivateUse1 backend brings its own. The lists
are CUDA's. `torch.autocast("cuda")` has to switch the backend's autocast on, so the functions that ask and set
autocast's state are translated while the stand-in is active.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from optrace.tracing.standin.device import BACKEND
from optrace.tracing.standin.patches import Patch

KEY = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]  # missing in the stubs

Kernel = Callable[..., Any]

LOWER_PRECISION = [
    "_convolution.deprecated",
    "_convolution",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution",
    "cudnn_convolution",
    "cudnn_convolution_transpose",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "einsum",
    "mm",
    "mv",
    "linalg_vecdot",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
    "_scaled_dot_product_flash_attention",
    "scaled_dot_product_attention",
]

FP32 = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "group_norm",
    "frobenius_norm.dim",
    "nuclear_norm",
    "nuclear_norm.dim",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "upsample_nearest1d",
    "_upsample_nearest_exact1d",
    "upsample_nearest2d",
    "_upsample_nearest_exact2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "_upsample_bilinear2d_aa",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
]
FP32_SINCE_2_13 = ["rms_norm"]

# These take an optional output dtype, which becomes float32 unless the caller set it.
FP32_OUTPUT = [
    "prod",
    "prod.dim_int",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord",
    "sum",
    "sum.dim_IntList",
]

# These call an overload that takes the output dtype as one more argument.
FP32_OTHER_OVERLOAD = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}

PROMOTE = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
]

_cached_casts: dict[int, tuple[Tensor, Tensor]] = {}


def _eligible(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.dtype != torch.float64
        and value.device.type in (BACKEND, "cuda")
    )


def _lower_dtype() -> torch.dtype:
    return torch._C.get_autocast_dtype(BACKEND)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """`value` with its eligible tensors cast to `dtype`; casts of float32 weights are made once a context."""
    if isinstance(value, (list, tuple)):
        return [_cast(v, dtype) for v in value]
    if not _eligible(value) or value.dtype == dtype:
        return value
    keep = (
        dtype == _lower_dtype()
        and value.dtype == torch.float32
        and value.requires_grad
        and value.is_leaf
        and not value._is_view()
        and torch.is_autocast_cache_enabled()
        and not torch.is_inference_mode_enabled()
    )
    if not keep:
        return value.to(dtype)
    kept = _cached_casts.get(id(value))
    if kept is None:
        kept = _cached_casts[id(value)] = (value, value.to(dtype))
    return kept[1]


def _widest(current: torch.dtype, value: Any) -> torch.dtype:
    if isinstance(value, (list, tuple)):
        for v in value:
            current = _widest(current, v)
        return current
    return torch.float32 if _eligible(value) and value.dtype == torch.float32 else current


def _casting(op: Any, dtype_for: Callable[[tuple[Any, ...]], torch.dtype]) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(KEY)):
            dtype = dtype_for(args)
            # Last argument first: C++ compilers evaluate the casts in that order, and the order is visible.
            named = {name: _cast(value, dtype) for name, value in reversed(kwargs.items())}
            cast = [_cast(a, dtype) for a in reversed(args)]
            return op(*reversed(cast), **named)

    return kernel


def _fp32_output(op: Any) -> Kernel:
    """The op with its optional dtype, given by position or by keyword, set to float32."""
    at = next(i for i, a in enumerate(op._schema.arguments) if a.name == "dtype")
    by_keyword = op._schema.arguments[at].kwarg_only

    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("dtype") if by_keyword or len(args) <= at else args[at]
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(KEY)):
            if given is None and _eligible(args[0]):
                args, kwargs = args[:at] if not by_keyword else args, {**kwargs, "dtype": torch.float32}
            return op(*args, **kwargs)

    return kernel


def _fp32_other_overload(op: Any) -> Kernel:
    names = [a.name for a in op._schema.arguments if not a.kwarg_only]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        # leave out nothing between the arguments given and the dtype: the overload takes them by name
        given = dict(zip(names, args, strict=False))
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(KEY)):
            dtype = torch.float32 if _eligible(args[0]) else args[0].dtype
            return op(**given, **kwargs, dtype=dtype)

    return kernel


def _banned(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(
        "binary_cross_entropy is not allowed under autocast: its inputs lose too much precision; "
        "apply binary_cross_entropy_with_logits (BCEWithLogitsLoss) to the logits instead"
    )


def _find(name: str) -> Any | None:
    """The overload called `name` ("mm", "pow.Scalar"); None where this torch has none."""
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return getattr(packet, overload or "default", None)


def _lower(args: tuple[Any, ...]) -> torch.dtype:
    return _lower_dtype()


def _always_float32(args: tuple[Any, ...]) -> torch.dtype:
    return torch.float32


def kernels() -> dict[str, Kernel]:
    """The autocast kernel of each op on CUDA's lists, by the op's name."""
    wanted: dict[str, Callable[[Any], Kernel]] = {}
    wanted |= dict.fromkeys(LOWER_PRECISION, lambda op: _casting(op, _lower))
    fp32 = [*FP32, *FP32_SINCE_2_13] if torch.__version__ >= "2.13" else FP32
    wanted |= dict.fromkeys(fp32, lambda op: _casting(op, _always_float32))
    wanted |= dict.fromkeys(PROMOTE, lambda op: _casting(op, lambda args: _widest(_lower_dtype(), args)))
    wanted |= dict.fromkeys(FP32_OUTPUT, _fp32_output)
    found = {name: make(op) for name, make in wanted.items() if (op := _find(name)) is not None}
    for name, other in FP32_OTHER_OVERLOAD.items():
        if (op := _find(other)) is not None:
            found[name] = _fp32_other_overload(op)
    found["binary_cross_entropy"] = _banned
    return found


def forget_casts() -> None:
    """Drop the casts that were kept for the context that ends."""
    _cached_casts.clear()


def patches() -> list[Patch]:
    """The rows by which autocast's state for `cuda` is the backend's state."""

    def translated(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(device_type: Any = "cuda", *args: Any) -> Any:
            if isinstance(device_type, str):
                device_type = BACKEND if device_type == "cuda" else device_type
                return original(device_type, *args)
            return original(BACKEND, device_type, *args)  # the old form: one flag, for CUDA

        return call

    def clear_autocast_cache() -> None:
        forget_casts()
        cleared()

    def is_autocast_available(device_type: str) -> bool:
        return device_type == "cuda" or available(device_type)

    cleared = torch.clear_autocast_cache
    available = torch.amp.autocast_mode.is_autocast_available
    why = "autocast for `cuda` is the backend's"
    rows = [
        Patch(torch, name, translated(getattr(torch, name)), why)
        for name in (
            "is_autocast_enabled",
            "set_autocast_enabled",
            "get_autocast_dtype",
            "set_autocast_dtype",
        )
    ]
    gpu: dict[str, Callable[..., Any]] = {
        "get_autocast_gpu_dtype": lambda: torch._C.get_autocast_dtype(BACKEND),
        "set_autocast_gpu_dtype": lambda dtype: torch._C.set_autocast_dtype(BACKEND, dtype),
    }
    rows += [Patch(torch, name, f, why) for name, f in gpu.items()]
    rows.append(
        Patch(torch, "clear_autocast_cache", clear_autocast_cache, "the casts that are kept are ours")
    )
    for module in (torch.amp, torch.amp.autocast_mode):
        rows.append(Patch(module, "is_autocast_available", is_autocast_available, why))
    return rows
