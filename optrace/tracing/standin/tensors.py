# ruff: noqa: ARG005  # signatures are those of torch
# torch leaves these functions untyped:
# mypy: disable-error-code="no-untyped-call"
"""How fake tensors look to the user's program: the attributes and methods of `FakeTensor` that are replaced."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from optrace.tracing.standin.device import BACKEND, META, to_user
from optrace.tracing.standin.patches import Patch


def seen_device(self: FakeTensor) -> torch.device:
    """`FakeTensor.device` as the reader has to see it: the meta device in shape functions written in C++, the
    backend's in those written in Python, `cuda` for everybody else."""
    mode = self.fake_mode
    if mode.in_kernel_invocation:
        return META
    device = self.fake_device
    if device.type == BACKEND and not getattr(mode, "depth", 0):
        return to_user(device)
    return device


def seen_is_cuda(self: FakeTensor) -> bool:
    """`FakeTensor.is_cuda` to match `seen_device`."""
    return seen_device(self).type == "cuda"


def address(self: FakeTensor) -> int:
    """`FakeTensor.data_ptr()`: no memory, but equal for tensors that share it and distinct for others."""
    return int(self.untyped_storage()._cdata) + int(self.storage_offset()) * self.element_size()


def deep_copied(self: FakeTensor, memo: dict[int, Any]) -> Tensor:
    """`copy.deepcopy` of a leaf: a tensor of the same kind and layout, without copying storage bytes."""
    if id(self) in memo:
        copied: Tensor = memo[id(self)]
        return copied
    if not self.is_leaf:
        raise RuntimeError("Only Tensors created explicitly by the user (graph leaves) support deepcopy")
    with torch.no_grad():
        copied = self.detach().clone(memory_format=torch.preserve_format)
    if isinstance(self, torch.nn.Parameter):  # whose gradient torch does not copy
        memo[id(self)] = torch.nn.Parameter(copied, requires_grad=self.requires_grad)
        return cast(Tensor, memo[id(self)])
    copied.requires_grad_(self.requires_grad)
    memo[id(self)] = copied
    if self.grad is not None:
        copied.grad = deepcopy(self.grad, memo)
    return copied


def as_numpy(self: FakeTensor, *, force: bool = False) -> Any:
    """`FakeTensor.numpy()` of a tensor whose values are known; zeros, as a guess, if the user chose to guess."""
    if force:
        return _read(_fake(self.detach().cpu()))
    if self.fake_device.type != "cpu":
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy it to the host"
        )
    if self.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        )
    return _read(_fake(self.detach()))


def _read(self: FakeTensor) -> Any:
    """The values of a tensor on the host, of which no call is seen."""
    mode: Any = self.fake_mode  # ours: the only one while these rows are in place
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        value = mode.values.get(self)
        if value is None:
            value = mode.answers.guess(
                "Tensor.numpy", lambda worst: torch.zeros(self.shape, dtype=self.dtype), (self,)
            )
        return value.clone().numpy()


def _fake(t: Tensor) -> FakeTensor:
    return cast(FakeTensor, t)  # every tensor made in a stand-in is one


def as_list(self: FakeTensor) -> Any:
    """`FakeTensor.tolist()`: a tensor on the GPU is copied to the host first, as torch does."""
    host = self.cpu() if self.fake_device.type == BACKEND else self
    if host.dtype == torch.bfloat16:  # a dtype that numpy does not have
        host = host.float()
    return _read(_fake(host)).tolist()


def formatted(self: FakeTensor, spec: str) -> str:
    """`format(x, spec)`: of a number its value, else what torch shows."""
    return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)


_set_data = torch.Tensor.data.__set__  # type: ignore[attr-defined]  # a property written in C


def set_data(self: FakeTensor, value: Tensor) -> None:
    """`x.data = value`, also from CPU to GPU, which torch allows for CUDA but not for this backend."""
    if self.device == value.device:
        _set_data(self, value)
        return
    moved = value.detach()
    if isinstance(self, torch.nn.Parameter):
        moved = torch.nn.Parameter(moved, requires_grad=self.requires_grad)
    else:
        moved.requires_grad_(self.requires_grad)
    torch.utils.swap_tensors(self, moved)


def new_parameter(cls: type, data: Any = None, requires_grad: bool = True) -> Any:
    """`nn.Parameter(data)`: torch wraps a plain tensor with no call, and detaches any other kind, which is seen."""
    if not isinstance(data, FakeTensor):
        return _new_parameter(cls, data, requires_grad)
    mode: Any = data.fake_mode
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        made = mode.unseen(torch.ops.aten.detach.default, (data,))
    made.requires_grad_(requires_grad)
    made._is_param = True
    return made


_new_parameter = torch.nn.Parameter.__new__


class NotFake(type):
    """The type of a class that nothing is an instance of."""

    def __instancecheck__(cls, instance: object) -> bool:
        return False


class NoFakeTensor(metaclass=NotFake):
    """What programs get that look for fake tensors to take another path while being traced."""


def patches() -> list[Patch]:
    """The rows by which fake tensors look like tensors of the user's device."""
    return [
        Patch(FakeTensor, "device", property(seen_device), "the user has to see `cuda`"),
        Patch(FakeTensor, "is_cuda", property(seen_is_cuda), "the user has to see `cuda`"),
        Patch(FakeTensor, "numpy", as_numpy, "known values can be read"),
        Patch(FakeTensor, "__format__", formatted, "known values can be read"),
        Patch(FakeTensor, "tolist", as_list, "known values can be read"),
        Patch(
            FakeTensor,
            "data",
            property(torch.Tensor.data.__get__, set_data),  # type: ignore[attr-defined]  # a property in C
            "torch refuses to move a tensor to this backend in place",
        ),
        Patch(
            torch._subclasses,
            "FakeTensor",
            NoFakeTensor,
            "programs take another path if they see fake tensors",
        ),
        Patch(torch.nn.Parameter, "__new__", staticmethod(new_parameter), "a wrapper is no call"),
        Patch(FakeTensor, "data_ptr", address, "programs compare pointers to find shared memory"),
        Patch(FakeTensor, "__deepcopy__", deep_copied, "torch copies storage bytes, of which there are none"),
    ]


def adoption(mode: FakeTensorMode) -> Patch:
    """The row by which tensors of an earlier stand-in, as those of a module that it placed, belong to ``mode``: torch
    ends the process where a backward pass meets two. Their contents are not known any more."""
    kind = type(mode)  # of which the mode of several threads is one too

    def owner(self: FakeTensor) -> FakeTensorMode:
        own: FakeTensorMode = self.__dict__["fake_mode"]
        return mode if isinstance(own, kind) else own

    def own(self: FakeTensor, made_in: FakeTensorMode) -> None:
        self.__dict__["fake_mode"] = made_in

    return Patch(FakeTensor, "fake_mode", property(owner, own), "a GPU keeps its tensors")
