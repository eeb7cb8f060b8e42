"""The dispatch mode below everything: FakeTensorMode for tensors of the pretended GPU.

It differs from torch's FakeTensorMode where a GPU that really is there would differ from a GPU that is being
described: device names are translated at the last door before dispatch, and real tensors that wander in (loaded
weights, constants) are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorConverter, FakeTensorMode

from optrace.tracing.standin.device import BACKEND, META, parse, to_backend, to_user
from optrace.tracing.standin.patches import Patch

# Ops whose schema takes a device by position. Everywhere else in ATen a device is keyword-only.
_POSITIONAL_DEVICE: Mapping[object, int] = {
    torch.ops.aten.to.device: 1,
    torch.ops.aten.to.prim_Device: 1,
    torch.ops.aten._pin_memory.default: 1,
    torch.ops.aten.pin_memory.default: 1,
    torch.ops.aten.is_pinned.default: 1,
    torch.ops.prims.device_put.default: 1,
}


class _Converter(FakeTensorConverter):
    """A converter that keeps no weak references to the tensors it makes.

    torch remembers which fake tensor belongs to a meta tensor that an op has just made. Nothing asks again for a
    fresh meta tensor, and the weak reference makes `swap_tensors`, hence `module.to()` and `.half()`, refuse.
    """

    def set_tensor_memo(self, t: torch.Tensor, v: FakeTensor) -> None:
        """Remember nothing."""


class StandInMode(FakeTensorMode):
    """FakeTensorMode on the backend's device.

    `depth` counts the dispatches under way: torch's own shape functions, which run inside, must see the backend's
    device; everybody outside (the user's program, a recorder above) sees `cuda`.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.fake_tensor_converter = _Converter()
        self.depth = 0

    # torch asks this to decide whether constants may be moved to a real device. Never: `torch.cuda` says that
    # a GPU is there, but it is ours.
    avoid_device_init = True

    def __deepcopy__(self, memo: dict[int, Any]) -> StandInMode:
        """Copied tensors belong to the same mode: torch would otherwise copy the mode with each of them."""
        return self

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if device is not None and device.type == "cuda":
            kwargs = {**kwargs, "device": to_backend(device)}
        elif (at := _POSITIONAL_DEVICE.get(func)) is not None and len(args) > at:
            args = (*args[:at], parse(args[at]), *args[at + 1 :])
        self.depth += 1
        try:
            return self.dispatch(func, types, args, kwargs)
        finally:
            self.depth -= 1


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
    return self.untyped_storage()._cdata + self.storage_offset() * self.element_size()


def deep_copied(self: FakeTensor, memo: dict[int, Any]) -> torch.Tensor:
    """`copy.deepcopy` of a leaf: a tensor of the same kind and layout, without copying storage bytes."""
    if id(self) in memo:
        copied: torch.Tensor = memo[id(self)]
        return copied
    if not self.is_leaf:
        raise RuntimeError("Only Tensors created explicitly by the user (graph leaves) support deepcopy")
    with torch.no_grad():
        copied = self.detach().clone(memory_format=torch.preserve_format)
    if isinstance(self, torch.nn.Parameter):
        copied = torch.nn.Parameter(copied, requires_grad=self.requires_grad)
    else:
        copied.requires_grad_(self.requires_grad)
    memo[id(self)] = copied
    if self.grad is not None:
        copied.grad = deepcopy(self.grad, memo)
    return copied


def patches() -> list[Patch]:
    """The rows by which fake tensors look like tensors of the user's device."""
    return [
        Patch(FakeTensor, "data_ptr", address, "programs compare pointers to find shared memory"),
        Patch(FakeTensor, "__deepcopy__", deep_copied, "torch copies storage bytes, of which there are none"),
        Patch(FakeTensor, "device", property(seen_device), "the user has to see `cuda`"),
        Patch(FakeTensor, "is_cuda", property(seen_is_cuda), "the user has to see `cuda`"),
    ]
