"""Timing on a host whose speed changes: a virtual machine's core can lose half of it to a neighbour from one moment to the
next.

Each timing stands between two turns of the reference loop. Those taken while the host was slower than at its best are
left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from time import monotonic

from optrace.tracing.clock import reference_loop_us

#: How much slower than its best the host may be.
TOLERANCE = 0.12


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


def loop_turn_us() -> float:
    """A short look at the host's speed: microseconds of a turn of the reference loop."""
    return reference_loop_us(rounds=2, turns=40)


def calm(best_loop_us: float, seconds: float = 1.0) -> bool:
    """Wait until the host is at its best, on another processor if need be, at most so long. Whether one had to: what
    runs next finds cold caches."""

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
