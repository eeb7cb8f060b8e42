"""Timing on a host whose speed changes: a virtual machine's core can lose half of it to a neighbour from one moment to the
next.

Each timing stands between two turns of the reference loop. Those taken while the host was slower than at its best are
left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


def undisturbed(timings: Sequence[Timing], best_loop_us: float | None = None) -> list[Timing]:
    """Those taken at the host's best speed (the best of these, if none is given); the least disturbed third where
    hardly any was."""
    best = min(timing.loop_us for timing in timings) if best_loop_us is None else best_loop_us
    good = [timing for timing in timings if timing.loop_us <= best * (1 + TOLERANCE)]
    least = max(1, min(3, len(timings) // 3))
    return good if len(good) >= least else sorted(timings, key=lambda timing: timing.loop_us)[:least]
