"""Timing on a host whose speed changes: a virtual machine's core can lose half of it to a neighbour from one moment to the
next.

Each timing stands between two turns of the reference loop, on the threads that a step runs on: the caller's, and the one
on which autograd runs backward passes. Those taken while the host was slower than at its best are left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from threading import get_ident
from time import monotonic
from typing import TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from optrace.tracing.clock import reference_loop_us

T = TypeVar("T")

#: How much slower than its best the host may be.
TOLERANCE = 0.12
#: How long a timing waits for a host that is disturbed, seconds.
_PATIENCE_S = 0.02
#: Looks at the speed of all processors, at least.
_LOOKS = 8
#: What a thread's clock may show of one that only waited.
_IDLE_NS = 20_000


@dataclass(frozen=True, slots=True)
class Timing:
    """What was timed, and a turn of the reference loop around it: the slower of before and after."""

    us: tuple[float, ...]
    loop_us: float


def timed(measure: Callable[[], tuple[float, ...]]) -> Timing:
    """``measure`` between two short looks at the host's speed, 0.1 ms each."""
    before = loop_turn_us()
    us = measure()
    return Timing(us, max(before, loop_turn_us()))


def loop_turn_us(device: str | None = None) -> float:
    """A short look at the host's speed: microseconds of a turn of the reference loop; with a ``device`` the longer of this
    thread's and that of its backward passes."""
    here = reference_loop_us(rounds=2, turns=40)
    return here if device is None else max(here, _in_backward(device, loop_turn_us))


def timed_warm(measure: Callable[[], tuple[float, ...]], best_loop_us: float, device: str | None) -> Timing:
    """``measure`` on a calm host, right behind an untimed turn of it: it finds in the caches what that left there, and not
    the looks at the host's speed."""
    calm(best_loop_us, device)
    before = loop_turn_us(device)
    measure()
    us = measure()
    return Timing(us, max(before, loop_turn_us(device)))


def goes_backward(device: str, step: Callable[[], object]) -> str | None:
    """``device`` if its thread of backward passes works while ``step`` runs, so that the speed of that thread counts too;
    else None."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return device
    clock = _in_backward(device, lambda: time.pthread_getcpuclockid(get_ident()))
    before = time.clock_gettime_ns(clock)
    step()
    return device if time.clock_gettime_ns(clock) - before > _IDLE_NS else None


def undisturbed_loop_us() -> float:
    """A turn of the reference loop on a processor that nothing disturbs: that of the quickest quarter of looks now."""
    turns = []
    processors = _processors()
    for processor in processors * -(-_LOOKS // len(processors)):
        _move_to(processor)
        turns.append(loop_turn_us())
    return sorted(turns)[len(turns) // 4]


def calm(best_loop_us: float, device: str | None = None) -> None:
    """Wait until the host is at its best, on another processor if need be, for a moment at most; with a ``device``
    also the thread of its backward passes."""
    end = monotonic() + _PATIENCE_S
    for processor in cycle(_processors()):
        if loop_turn_us() <= best_loop_us * (1 + TOLERANCE) or monotonic() > end:
            break
        _move_to(processor)
    if device is not None:
        _in_backward(device, partial(calm, best_loop_us))


def _in_backward(device: str, run: Callable[[], T]) -> T:
    """What ``run`` says on the thread that runs backward passes on ``device``, whatever mode the caller is in; on the
    caller's inside of a transform of functions, which has no backward pass of its own."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return run()
    found: list[T] = []
    with _disable_current_modes(), torch.inference_mode(False), torch.enable_grad():
        result = torch.ones((), device=device, requires_grad=True) * 1
        result.register_hook(lambda _gradient: found.append(run()))  # type: ignore[no-untyped-call]  # torch leaves it so
        result.backward()  # type: ignore[no-untyped-call]  # torch leaves it so
    return found[0]


def _processors() -> list[int]:
    """Those that this thread may run on; one that means nothing where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]


def _move_to(processor: int) -> None:
    """Go on on this processor, free to be moved again; where the system lets one choose."""
    if hasattr(os, "sched_setaffinity"):
        with suppress(OSError):
            allowed = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {processor})
            os.sched_setaffinity(0, allowed)


def undisturbed(timings: Sequence[Timing], best_loop_us: float | None = None) -> list[Timing]:
    """Those taken at the host's best speed (the best of these, if none is given); the least disturbed third where
    hardly any was."""
    best = min(timing.loop_us for timing in timings) if best_loop_us is None else best_loop_us
    good = [timing for timing in timings if timing.loop_us <= best * (1 + TOLERANCE)]
    least = max(1, min(3, len(timings) // 3))
    return good if len(good) >= least else sorted(timings, key=lambda timing: timing.loop_us)[:least]


class SteadyTimings:
    """Timings of a program's steps, each begun while the host is at its best: ``look`` stands ahead of each."""

    def __init__(self, best_loop_us: float, device: str | None) -> None:
        self.made: list[Timing] = []
        self._best_loop_us = best_loop_us
        self._device = device
        self._before = 0.0

    def look(self) -> None:
        """Wait for a calm host, and see how fast it is."""
        calm(self._best_loop_us, self._device)
        self._before = loop_turn_us(self._device)

    @contextmanager
    def step(self) -> Iterator[list[float]]:
        """Around a step, whose microseconds are put into the list."""
        us: list[float] = []
        yield us
        self.made.append(Timing(tuple(us), max(self._before, loop_turn_us(self._device))))

    def another(self) -> SteadyTimings:
        """For timings of another thing on the same threads."""
        return SteadyTimings(self._best_loop_us, self._device)

    def undisturbed(self) -> list[Timing]:
        """Those at the host's best speed."""
        return undisturbed(self.made, self._best_loop_us)
