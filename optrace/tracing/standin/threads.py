"""Threads that a program starts: torch's modes are a thread's own, and each gets those of the stand-in.

Calls are made one at a time (``mode.SharedMode``), in whatever order the threads come to them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from optrace.tracing.standin.functions import DeviceNames
from optrace.tracing.standin.mode import StandInMode
from optrace.tracing.standin.patches import Patch

#: Packages whose threads watch the clock and make no tensors.
_NO_TENSORS = frozenset({"rich", "tqdm", "optrace"})


def patches(mode: StandInMode) -> list[Patch]:
    """The row by which threads run inside the stand-in."""
    start = threading.Thread.start

    def _start(self: threading.Thread) -> None:
        if type(self).__module__.partition(".")[0] not in _NO_TENSORS:
            mode.share()
            self.run = _inside(mode, self.run)  # type: ignore[method-assign]  # whatever its class runs
        start(self)

    return [Patch(threading.Thread, "start", _start, "a thread's modes are its own")]


def _inside(mode: StandInMode, run: Callable[[], None]) -> Callable[[], None]:
    def inside() -> None:
        if mode.ended:
            return run()
        with torch.autograd.set_multithreading_enabled(False), DeviceNames(mode):
            # Not as a context: what a mode keeps to leave by is that of the thread that opened it.
            torch._C._set_dispatch_mode(mode)
            try:
                return run()
            finally:
                torch._C._unset_dispatch_mode(mode._mode_key)

    return inside
