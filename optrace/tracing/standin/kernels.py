# ruff: noqa: ARG001  # signatures are those of torch
# torch leaves these functions untyped:
# mypy: disable-error-code="no-untyped-call"
"""Kernels that the dispatcher needs for the backend, registered once in a process through `torch.library`.

Five kinds:
- composite ops that CUDA handles in a way of its own (attention, batch norm, recurrent networks): our function
  takes the place of torch's decomposition and calls the op that CUDA would call;
- ops that have both a CUDA kernel and a decomposition: with no kernel for the backend the dispatcher would
  decompose them, so they get a placeholder, which never runs because fake tensors stop one step above it;
- what copies numbers from Python to the GPU (`from_host`);
- autocast's lists;
- the op that stands for a Triton kernel (`opaque`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

import torch

from optrace.tracing.standin import attention, autocast, from_host, normalization, opaque, recurrent, softmax

COMPOSITES: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": attention.scaled_dot_product_attention,
    "_batch_norm_impl_index": normalization.batch_norm_impl_index,
    "softmax.int": softmax.softmax,
    "log_softmax.int": softmax.log_softmax,
    "grid_sampler": softmax.grid_sampler,
    "one_hot": softmax.one_hot,
    **recurrent.kernels(),
}

CUDA_KERNEL_AND_DECOMPOSITION = ("mish_backward", "silu_backward", "_fused_rms_norm")

_libraries: list[torch.library.Library] = []  # a registration lives as long as its library


def overload(name: str) -> Any:
    """The op called `name` in `aten`: "mm", "gru.input"."""
    base, _, which = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), which or "default")


def _placeholder(*args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError("the stand-in for a GPU has no memory and cannot run kernels")


@cache
def register() -> None:
    """Register all kernels (idempotent)."""
    aten = torch.library.Library("aten", "IMPL")
    everything = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    ours = torch.library.Library("optrace", "DEF")
    ours.define(opaque.TRITON_OP)
    _libraries.extend((aten, everything, ours))
    for name, kernel in COMPOSITES.items():
        aten.impl(name, kernel, "AutogradPrivateUse1")
    for name in CUDA_KERNEL_AND_DECOMPOSITION:
        aten.impl(name, _placeholder, "PrivateUse1")
    for name, copying in from_host.KERNELS.items():
        aten.impl(name, copying, "PrivateUse1")
    for name, kernel in autocast.kernels().items():
        aten.impl(name, kernel, "AutocastPrivateUse1")
    everything.fallback(torch.library.fallthrough_kernel)


@cache
def instead() -> dict[Any, Callable[..., Any]]:
    """Our function for each composite op, by overload: for modes that meet the op undecomposed, as they do under
    inference mode."""
    return {overload(name): kernel for name, kernel in COMPOSITES.items()}
