"""Does a trace leave anything behind? Many in one process, whole ones and ones that were interrupted.

    python -m tests.bench.soak [TIMES [KIND]]

TIMES (default 200) traces of a training step in fake mode run to their end; as many are interrupted by a call, drawn
at random; as many by SIGINT, which a timer of the kernel sends, anywhere from the opening of the session to its end. KIND is how the names of the kinds begin that are run
(``whole``, ``interrupted``). Exit status 1 if a tensor, a file, a mode or a name of
torch is not as it was before.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from optrace.tracing import open_session
from tests.standin.torch_state import torch_state


def step() -> None:
    """A training step: modules, autocast, dropout, backward pass, optimizer."""
    model = nn.Sequential(
        nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 4)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(torch.randn(8, 16, device="cuda")).float().square().mean()
        loss.backward()
        optimizer.step()


def traced() -> None:
    with open_session("fake") as session, session.recording():
        step()


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds."""

    tensors: int
    files: int
    resident: int  # bytes

    @classmethod
    def now(cls) -> Held:
        gc.collect()
        tensors = sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())
        with open("/proc/self/statm") as statm:
            pages = int(statm.read().split()[1])
        return cls(tensors, len(os.listdir("/proc/self/fd")), pages * resource.getpagesize())


Run = Callable[[], None]


def interrupting_call(number: int) -> Run:
    """A trace whose call ``number`` is interrupted instead of being executed."""

    def run() -> None:
        with open_session("fake") as session:
            tracer = session._tracer
            recorded = tracer.call

            def call(run: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
                if len(session.graph) == number:
                    raise KeyboardInterrupt
                return recorded(run, func, args, kwargs)

            tracer.call = call  # type: ignore[method-assign]  # between the program and the recorder
            with session.recording():
                step()

    return run


class _Notification(ctypes.Structure):
    """``struct sigevent`` of Linux: which signal a timer sends to the process."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("how", ctypes.c_int),
        ("unused", ctypes.c_char * 48),
    )


class _Times(ctypes.Structure):
    """``struct itimerspec``: how often, and when first."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns"))


_CLOCK_PROCESS_CPUTIME_ID = 2


@contextmanager
def interrupt_after(seconds: float) -> Iterator[None]:
    """The kernel sends SIGINT after so much process time; a thread or a handler in Python would first need the
    interpreter, and so choose the moment."""
    # Of a process in the background, shells have it ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    libc = ctypes.CDLL(None, use_errno=True)
    timer, when = ctypes.c_void_p(), _Times(first_s=int(seconds), first_ns=int(seconds % 1 * 1e9))
    what = _Notification(signal=signal.SIGINT)
    if libc.timer_create(_CLOCK_PROCESS_CPUTIME_ID, ctypes.byref(what), ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "timer_create")
    try:
        libc.timer_settime(timer, 0, ctypes.byref(when), None)
        yield
    finally:
        libc.timer_delete(timer)
        signal.signal(signal.SIGINT, before)


def interrupted_after(seconds: float) -> Run:
    """A trace that Ctrl-C interrupts wherever it is after so much process time."""

    def run() -> None:
        with interrupt_after(seconds):
            traced()

    return run


def left_changed(run: Run) -> tuple[bool, list[object]]:
    """Whether a trace was interrupted, and what it left of torch that is not as before."""
    before = torch_state()
    interrupted = False
    try:
        run()
    except KeyboardInterrupt:
        interrupted = True
    return interrupted, before.changed_in(torch_state())


def calls_and_seconds() -> tuple[int, float]:
    """Of one warm trace: its calls, and its process time."""
    for _ in range(2):
        start = time.process_time()
        with open_session("fake") as session, session.recording():
            step()
        seconds = time.process_time() - start
        calls = len(session.graph)
    return calls, seconds


def main(times: int, kind: str = "") -> int:
    calls, seconds = calls_and_seconds()
    draw = random.Random(0)
    kinds: dict[str, list[Run]] = {
        "whole": [traced] * times,
        "interrupted by a call": [interrupting_call(draw.randrange(calls)) for _ in range(times)],
        "interrupted by a timer": [interrupted_after(draw.uniform(0, seconds)) for _ in range(times)],
    }
    print(f"torch {torch.__version__}, {calls} calls a trace")
    bad = 0
    for name, runs in kinds.items():
        if not name.startswith(kind):
            continue
        interrupted = 0
        changed: list[object] = []
        early = Held.now()
        for number, run in enumerate(runs):
            stopped, left = left_changed(run)
            interrupted += stopped
            changed += left
            if number + 1 == max(1, times // 10):
                early = Held.now()  # caches are full
        late = Held.now()
        bad += interrupted == 0 and name.startswith("interrupted")
        bad += len(changed) + max(0, late.tensors - early.tensors) + max(0, late.files - early.files)
        print(
            f"{name}: {times} traces, {interrupted} stopped early, {len(changed)} names or switches of torch changed "
            f"{changed[:3]}; from the {max(1, times // 10)}th to the last: tensors {early.tensors} to {late.tensors}, "
            f"files {early.files} to {late.files}, resident memory {early.resident / 2**20:.1f} to "
            f"{late.resident / 2**20:.1f} MiB",
            flush=True,
        )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200, *sys.argv[2:]))
