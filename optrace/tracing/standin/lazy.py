# ruff: noqa: ARG001  # signatures are those of torch
# torch leaves these functions untyped:
# mypy: disable-error-code="no-untyped-call"
"""Parameters that get their shape at the first call (`nn.LazyLinear`, ...).

torch makes them as a subclass of a real tensor and later changes data and class in place. A fake tensor can become
neither, so they stay real and empty here, remember where the module was moved, and turn into fake parameters when
their shape is known.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import parameter
from torch.utils._python_dispatch import _disable_current_modes

from optrace.tracing.standin.patches import Patch


def _make(cls: type, requires_grad: bool, device: Any, dtype: torch.dtype | None) -> Any:
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        made: Any = torch.Tensor._make_subclass(cls, torch.empty(0, dtype=dtype), requires_grad)
    made.waits_for = torch.get_default_device() if device is None else torch.device(device)
    return made


def _new_parameter(cls: type, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> Any:
    return _make(cls, requires_grad, device, dtype)


def _new_buffer(
    cls: type, requires_grad: bool = False, device: Any = None, dtype: Any = None, persistent: bool = True
) -> Any:
    made = _make(cls, requires_grad, device, dtype)
    made.persistent = persistent
    made._is_buffer = True
    return made


def _materialize(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
    dtype = dtype or torch.Tensor.dtype.__get__(self)  # type: ignore[attr-defined]  # a property in C
    made: Any = torch.empty(shape, device=device or self.waits_for, dtype=dtype)
    if issubclass(self.cls_to_become, torch.nn.Parameter):
        made = self.cls_to_become(made)
    else:  # a buffer: a tensor that says so
        made.persistent, made._is_buffer = self.persistent, True
    torch.utils.swap_tensors(self, made)


def _to(self: Any, *args: Any, **kwargs: Any) -> Any:
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    if device is not None:
        self.waits_for = device
    if dtype is not None:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            torch.Tensor.data.__set__(self, torch.empty(0, dtype=dtype))  # type: ignore[attr-defined]
    return self


def _cuda(self: Any, device: Any = None, **kwargs: Any) -> Any:
    self.waits_for = torch.device("cuda", 0)
    return self


def patches() -> list[Patch]:
    """The rows for torch's uninitialized parameters and buffers."""
    why = "a fake tensor cannot change its data and class in place"
    mixin = vars(parameter)["UninitializedTensorMixin"]  # private to the module
    return [
        Patch(parameter.UninitializedParameter, "__new__", staticmethod(_new_parameter), why),
        Patch(parameter.UninitializedBuffer, "__new__", staticmethod(_new_buffer), why),
        Patch(mixin, "materialize", _materialize, why),
        Patch(mixin, "to", _to, why),
        Patch(mixin, "cuda", _cuda, why),
    ]
