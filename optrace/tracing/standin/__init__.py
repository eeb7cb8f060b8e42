"""A stand-in for a missing GPU: programs that say `cuda` dispatch what they would dispatch on the GPU.

    with standin() as gpu:
        model = gpu.place(Model())        # nothing is allocated
        with Recorder():                  # any TorchDispatchMode
            model(torch.randn(8, 64, device="cuda"))

It stands in for the driver, the device and its memory, not for the kernels' results: tensors are fake (shapes,
strides, dtypes, devices), and the sequence of ATen calls is the one of the GPU. With `values="all"` the CPU computes
the results beside them. The pieces:

| module | stands in for |
|---|---|
| `device` | what the GPU is, and the two names of it: the user's `cuda`, torch's backend |
| `backend` | the driver: a PrivateUse1 backend written in Python, registered once in a process |
| `mode` | the memory: FakeTensorMode on that backend |
| `functions` | device names in calls of the torch API |
| `kernels` | the dispatcher's table: ops that CUDA handles in a way of its own |
| `attention`, `normalization`, `recurrent`, `softmax` | the choice between cuDNN, flash and torch's own kernels |
| `autocast` | CUDA's autocast lists |
| `cuda_api` | the answers of `torch.cuda` |
| `from_host` | the copy of Python's numbers to the GPU, which nobody sees |
| `legacy` | `torch.cuda.FloatTensor` and its kin |
| `initialization` | fillers of `torch.nn.init` |
| `printing` | the calls by which a tensor of the GPU is printed |
| `tensors`, `backward` | attributes of fake tensors that the user sees; exceptions in a backward pass |
| `shapes`, `layout` | what CUDA's own ops return |
| `values`, `unknown` | contents of small tensors, and answers for those that are not known |
| `contents`, `equivalents`, `cpu_attention`, `cpu_recurrent` | contents of all tensors, computed by the CPU, where they are wanted |
| `opaque` | the results of ops that torch cannot look into, launches of Triton kernels |
| `modules`, `lazy` | parameters that keep their identity when a module is moved; uninitialized ones |
| `optimizers` | the types that optimizers take fast paths for |
| `patches` | the one mechanism by which names of torch are replaced and restored |

Where a program never names a device, its tensors stay on the CPU, as they would beside a real GPU: an optimizer's
step counters and masks built on the host really live there. `StandIn.place` moves a finished model or its inputs
to the default device, as a user would with `.cuda()`; the caller decides what to place.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from optrace.tracing.calls import Watcher
from optrace.tracing.standin import (
    autocast,
    backend,
    backward,
    cuda_api,
    from_host,
    initialization,
    kernels,
    lazy,
    legacy,
    modules,
    opaque,
    optimizers,
    printing,
    streams,
    tensors,
    threads,
)
from optrace.tracing.standin.contents import Contents
from optrace.tracing.standin.device import StandinDevice, activated, to_user
from optrace.tracing.standin.functions import DeviceNames, look_through_patches
from optrace.tracing.standin.mode import StandInMode, decompose
from optrace.tracing.standin.patches import Patch, applied
from optrace.tracing.standin.unknown import Assume, Guess, NoFakeError, UnknownValueError
from optrace.tracing.standin.values import Values

__all__ = ["Assume", "Guess", "NoFakeError", "StandIn", "StandinDevice", "UnknownValueError", "standin"]


@dataclass(slots=True)
class StandIn:
    """The pretended GPU while it is active."""

    device: StandinDevice
    default_device: str | None = "cuda"
    guesses: list[Guess] = field(default_factory=list)
    _mode: StandInMode | None = field(default=None, init=False, repr=False)

    def device_of(self, t: torch.Tensor) -> str:
        """The device of `t` as the user's program sees it: "cuda:0", "cpu"."""
        return str(to_user(t.device))

    def seen(self, value: Any) -> Any:
        """An argument of a recorded call as the user would see it: devices of the backend become `cuda`."""
        return to_user(value) if isinstance(value, torch.device) else value

    @property
    def stream(self) -> int:
        """The CUDA stream that calls are issued on now; 0 is the default stream."""
        return streams.current_number()

    def decompose(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What `func` does in smaller ops; NotImplemented if it is not a composite op.

        Under inference mode a recorder meets composite ops whole. CUDA's choices replace some of torch's
        decompositions, so a recorder that wants the parts has to ask here, not `func.decompose`.
        """
        return decompose(func, args, kwargs)

    def watching(self, watcher: Watcher) -> AbstractContextManager[None]:
        """Show each call that the GPU or the host executes to ``watcher`` inside the context. It costs less than a
        dispatch mode of its own, through which torch's questions for a tensor's device would pass as well."""
        assert self._mode is not None  # made by `standin`
        return self._mode.watched_by(watcher)

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
_ended = 0  # stand-ins that this process had before


@contextmanager
def standin(
    device: StandinDevice = StandinDevice(),  # noqa: B008 - a frozen value
    *,
    assume: Assume = "error",
    values: Literal["small", "all"] = "small",
    default_device: str | None = "cuda",
) -> Iterator[StandIn]:
    """Pretend that `device` is there while the context is active.

    `values="small"` follows the values of small tensors that follow from constants. `"all"` computes every tensor's
    on the CPU beside the pretended calls, so that nothing has to be guessed: it costs the CPU's time and memory.

    Raises RuntimeError if a stand-in is active already, or if PrivateUse1 belongs to another package.
    """
    global _active
    if _active is not None:
        raise RuntimeError("a stand-in for a GPU is already active")
    backend.register()
    kernels.register()
    handle = StandIn(device, default_device)
    mode = StandInMode(
        assume, handle.guesses, Contents() if values == "all" else Values()
    )  # before the patches: torch imports modules here that look for a real driver
    handle._mode = mode
    rows: list[Patch] = [
        *tensors.patches(),
        *modules.patches(),
        *lazy.patches(),
        *legacy.patches(),
        *backward.patches(mode),
        *look_through_patches(),
        *cuda_api.patches(),
        *autocast.patches(),
        *optimizers.patches(),
        *initialization.patches(),
        *threads.patches(mode),
        *printing.patches(mode),
    ]
    if _ended:
        rows.append(tensors.adoption(mode))
    with ExitStack() as stack:
        _active = handle
        stack.callback(_deactivate)
        stack.callback(autocast.forget_casts)
        stack.enter_context(activated(device))
        stack.enter_context(_refusals_unlogged())
        stack.enter_context(streams.fresh())
        stack.enter_context(applied(rows))
        stack.enter_context(opaque.triton_kernels())
        # Backward in the caller's thread: torch loses exceptions that a mode raises in a device's own thread.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(from_host.into(mode, mode.values))
        stack.enter_context(DeviceNames(mode))
        stack.enter_context(mode)
        try:
            yield handle
        finally:
            # Its traceback has the program's frames, and their tensors have the mode: C++ holds a part of that ring.
            mode.failure = None
            mode.ended = True


@contextmanager
def _refusals_unlogged() -> Iterator[None]:
    """torch logs a traceback of its own for each call that a shape function refuses, before it raises: a program whose
    shapes do not fit says so once, with its exception."""
    log = logging.getLogger("torch._subclasses.fake_tensor")

    def wanted(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("failed while attempting to run meta")

    log.addFilter(wanted)
    try:
        yield
    finally:
        log.removeFilter(wanted)


def _deactivate() -> None:
    global _active, _ended
    _active = None
    _ended += 1
