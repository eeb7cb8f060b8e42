"""Timing on a host whose speed changes: a virtual machine's core can lose half of it to a neighbour from one moment to the
next.

Each timing stands between two turns of the reference loop, on the threads that a step runs on: the caller's, and the one
on which autograd runs backward passes. Those taken while the host was slower than at its best are left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from time import monotonic
from typing import TypeVar

import torch

from optrace.tracing.clock import reference_loop_us

T = TypeVar("T")

#: How much slower than its best the host may be.
TOLERANCE = 0.12
#: How long a timing waits for a host that is disturbed, seconds.
_PATIENCE_S = 0.01


@dataclass(frozen=True, slots=True)
class Timing:
    """What was timed, and a turn of the reference loop around it: the slower of before and after."""

    us: tuple[float, ...]
    loop_us: float


def timed(measure: Callable[[], tuple[float, ...]], device: str | None = None) -> Timing:
    """``measure`` between two short looks at the host's speed, 0.1 ms each; with a ``device`` also on the thread of its
    backward passes."""
    before = loop_turn_us(device)
    us = measure()
    return Timing(us, max(before, loop_turn_us(device)))


def loop_turn_us(device: str | None = None) -> float:
    """A short look at the host's speed: microseconds of a turn of the reference loop; with a ``device`` the longer of this
    thread's and that of its backward passes."""
    here = reference_loop_us(rounds=2, turns=40)
    return here if device is None else max(here, _in_backward(device, loop_turn_us))


def best_loop_us() -> float:
    """A turn of the reference loop on the quickest processor now."""
    turns = []
    for processor in _processors():
        _move_to(processor)
        turns.append(loop_turn_us())
    return min(turns)


def calm(best_loop_us: float, seconds: float = 1.0, device: str | None = None) -> bool:
    """Wait until the host is at its best, on another processor if need be, at most so long; with a ``device`` also the
    thread of its backward passes. Whether one had to: what runs next finds cold caches."""
    here = _calm_here(best_loop_us, seconds)
    return (
        here if device is None else _in_backward(device, partial(_calm_here, best_loop_us, seconds)) or here
    )


def _calm_here(best_loop_us: float, seconds: float) -> bool:
    def is_calm() -> bool:
        return loop_turn_us() <= best_loop_us * (1 + TOLERANCE)

    if is_calm():
        return False
    end = monotonic() + seconds
    for processor in cycle(_processors()):
        _move_to(processor)
        if is_calm() or monotonic() > end:
            return True
    raise AssertionError  # a cycle does not end


def _in_backward(device: str, run: Callable[[], T]) -> T:
    """What ``run`` says on the thread that runs backward passes on ``device``; whatever mode the caller is in."""
    found: list[T] = []
    with torch.inference_mode(False), torch.enable_grad():
        result = torch.ones((), device=device, requires_grad=True) * 1
        result.register_hook(lambda _gradient: found.append(run()))  # type: ignore[no-untyped-call]  # torch leaves it so
        result.backward()  # type: ignore[no-untyped-call]  # torch leaves it so
    return found[0]


def _processors() -> Sequence[int]:
    """Those that this thread may run on; one that means nothing where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (0,)


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
    """Timings of one thing, each begun while the host is at its best."""

    def __init__(self, best_loop_us: float, device: str) -> None:
        self.best_loop_us = best_loop_us
        self._device = device
        self._calm: list[Timing] = []
        self._moved: list[Timing] = []

    @contextmanager
    def one(self) -> Iterator[list[float]]:
        """Around what is timed, which puts microseconds into the list."""
        moved = calm(self.best_loop_us, _PATIENCE_S, self._device)
        before = loop_turn_us(self._device)
        us: list[float] = []
        yield us
        timing = Timing(tuple(us), max(before, loop_turn_us(self._device)))
        (self._moved if moved else self._calm).append(timing)

    @property
    def made(self) -> int:
        """How many there are."""
        return len(self._calm) + len(self._moved)

    def undisturbed(self) -> list[Timing]:
        """Those at the host's best speed, with warm caches if there are any such."""
        return undisturbed(self._calm or self._moved, self.best_loop_us)
