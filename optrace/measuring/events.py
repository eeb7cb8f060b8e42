"""Device time of each call by CUDA events, a cross-check of the profiler's: two events around the call, and before
them a kernel that spins while the host runs ahead, so that the device waits for nothing in between.

What two events with nothing between them show is left out. A call that waits for the device itself shows its own work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from optrace.tracing import Session

#: How long the spinning kernel runs: longer than the host takes for two events and a call of many launches.
_SPIN_US = 300.0


@dataclass(slots=True)
class EventTimes:
    """Microseconds of each call, in call order."""

    us: list[float] = field(default_factory=list)


@contextmanager
def timed_by_events(session: Session, found: EventTimes, *, flushed: bool) -> Iterator[None]:
    """Time the calls of the step run inside into ``found``. ``flushed``: the L2 holds something else before each."""
    properties = torch.cuda.get_device_properties()
    cycles = int(_SPIN_US * getattr(properties, "clock_rate", 1.5e6) / 1e3)
    filler = torch.empty(2 * properties.L2_cache_size, dtype=torch.uint8, device="cuda") if flushed else None
    clear = (lambda: filler.zero_()) if filler is not None else None
    pairs: list[tuple[Any, Any]] = []

    @contextmanager
    def around(_number: int) -> Iterator[None]:
        first, last = _event(), _event()
        if clear is not None:
            clear()
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        first.record()
        yield
        last.record()
        pairs.append((first, last))

    torch.cuda.synchronize()
    empty = []
    for _ in range(5):
        with around(0):
            pass
        empty.append(pairs.pop())
    with session.counting(around):
        yield
    torch.cuda.synchronize()
    found.us = less_empty([a.elapsed_time(b) for a, b in pairs], [a.elapsed_time(b) for a, b in empty])


def less_empty(times_ms: Sequence[float], empty_ms: Sequence[float]) -> list[float]:
    """Microseconds of each, less the shortest of those with nothing between."""
    nothing = min(empty_ms)
    return [round(max(time - nothing, 0.0) * 1e3, 3) for time in times_ms]


def _event() -> Any:
    make: Callable[..., Any] = torch.cuda.Event
    return make(enable_timing=True)
