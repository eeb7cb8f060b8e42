"""When a run's calls and launches really ran, as a profiler saw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

#: What the device did: run a kernel, copy, fill.
LaunchKind = Literal["kernel", "memcpy", "memset"]


@dataclass(frozen=True, slots=True)
class MeasuredLaunch:
    """One launch of call ``call``, in microseconds from the start of the run; ``issued_us`` is when the host began
    to hand it over, None where that was not seen; ``nbytes`` what a copy moved or a fill wrote, where that was seen."""

    call: int
    kind: LaunchKind
    name: str
    stream: int
    start_us: float
    end_us: float
    issued_us: float | None = None
    nbytes: int | None = None


@dataclass(frozen=True)
class MeasuredRun:
    """A run on ``device``: the launches in the order of their start, and the host's time in each call (start and end,
    None where it was not seen). ``unplaced_us`` is device time of launches that belong to no call."""

    device: str
    launches: Sequence[MeasuredLaunch]
    host_us: Sequence[tuple[float, float] | None]
    wall_us: float
    unplaced_us: float = 0.0

    @cached_property
    def call_us(self) -> tuple[float, ...]:
        """Device time of each call."""
        times = [0.0] * len(self.host_us)
        for launch in self.launches:
            times[launch.call] += launch.end_us - launch.start_us
        return tuple(times)

    @cached_property
    def call_launches(self) -> tuple[int, ...]:
        """Launches of each call."""
        counts = [0] * len(self.host_us)
        for launch in self.launches:
            counts[launch.call] += 1
        return tuple(counts)
