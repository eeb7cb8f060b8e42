"""A stand-in for a missing GPU: programs that say `cuda` dispatch what they would dispatch on the GPU.

    with standin() as gpu:
        model = gpu.place(Model())        # nothing is allocated
        with Recorder():                  # any TorchDispatchMode
            model(torch.randn(8, 64, device="cuda"))

It stands in for the driver, the device and its memory, not for the kernels' results: tensors are fake (shapes,
strides, dtypes, devices), and the sequence of ATen calls is the one of the GPU. The pieces:

| module | stands in for |
|---|---|
| `device` | what the GPU is, and the two names of it: the user's `cuda`, torch's backend |
| `backend` | the driver: a PrivateUse1 backend written in Python, registered once in a process |
| `mode` | the memory: FakeTensorMode on that backend |
| `functions` | device names in calls of the torch API |
| `cuda_api` | the answers of `torch.cuda` |
| `optimizers` | the types that optimizers take fast paths for |
| `patches` | the one mechanism by which names of torch are replaced and restored |

Where a program never names a device, its tensors stay on the CPU, as they would beside a real GPU: an optimizer's
step counters and masks built on the host really live there. `StandIn.place` moves a finished model or its inputs
to the default device, as a user would with `.cuda()`; the caller decides what to place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from optrace.tracing.standin import backend, cuda_api, optimizers
from optrace.tracing.standin.device import StandinDevice, to_user
from optrace.tracing.standin.functions import DeviceNames, look_through_patches
from optrace.tracing.standin.mode import StandInMode
from optrace.tracing.standin.mode import patches as mode_patches
from optrace.tracing.standin.patches import Patch, applied

__all__ = ["Guess", "StandIn", "StandinDevice", "standin"]

Assume = Literal["error", "zero", "worst"]


@dataclass(frozen=True, slots=True)
class Guess:
    """A value that the program asked of a tensor whose contents are not known."""

    op: str  # the overload that asked, e.g. "aten._local_scalar_dense.default"
    value: object  # what it was told


@dataclass(slots=True)
class StandIn:
    """The pretended GPU while it is active."""

    device: StandinDevice
    default_device: str | None = "cuda"
    guesses: list[Guess] = field(default_factory=list)

    def device_of(self, t: torch.Tensor) -> str:
        """The device of `t` as the user's program sees it: "cuda:0", "cpu"."""
        return str(to_user(t.device))

    def seen(self, value: Any) -> Any:
        """An argument of a recorded call as the user would see it: devices of the backend become `cuda`."""
        return to_user(value) if isinstance(value, torch.device) else value

    def place(self, value: Any) -> Any:
        """`value` moved to the default device, as `.cuda()` would: a module (in place), a tensor, or tensors in
        lists, tuples and dictionaries. Anything else, and everything when there is no default device, is handed
        back as it is."""
        if self.default_device is None:
            return value
        if isinstance(value, (torch.Tensor, torch.nn.Module)):
            return value.to(self.default_device)
        return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to(self.default_device), value)


_active: StandIn | None = None


@contextmanager
def standin(
    device: StandinDevice = StandinDevice(),  # noqa: B008 - a frozen value
    *,
    assume: Assume = "error",
    default_device: str | None = "cuda",
) -> Iterator[StandIn]:
    """Pretend that `device` is there while the context is active.

    Raises RuntimeError if a stand-in is active already, or if PrivateUse1 belongs to another package.
    """
    global _active
    if _active is not None:
        raise RuntimeError("a stand-in for a GPU is already active")
    backend.register()
    handle = StandIn(device, default_device)
    rows: list[Patch] = [
        *mode_patches(),
        *look_through_patches(),
        *cuda_api.patches(device),
        *optimizers.patches(),
    ]
    with ExitStack() as stack:
        _active = handle
        stack.callback(_deactivate)
        stack.enter_context(applied(rows))
        stack.enter_context(DeviceNames())
        stack.enter_context(StandInMode())
        yield handle


def _deactivate() -> None:
    global _active
    _active = None
