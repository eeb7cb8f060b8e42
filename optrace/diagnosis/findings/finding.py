"""What a finding is, and what a rule hands in for one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from optrace.graph import Frame
from optrace.timeline import Task

Severity = Literal["high", "medium", "low"]

#: Severities by the share of the wall clock that a finding is about, from the largest.
SEVERITIES: tuple[tuple[Severity, float], ...] = (("high", 0.1), ("medium", 0.01), ("low", 0.0))


@dataclass(frozen=True, slots=True)
class Hit:
    """One occurrence: its ``calls``, the one it is shown at first; why it costs, what to change.

    ``instead`` says what the calls would be after the change, as the queue sees them: a task a call that is left,
    None for a call that is gone (calls that are not in it stay). None where no time is claimed. ``line`` is where to look
    where that is not the line of the first call.
    ``why`` and ``change`` are whole sentences, alike for all occurrences at one place.
    """

    calls: tuple[int, ...]
    why: str
    change: str
    instead: Mapping[int, Task | None] | None = None
    line: Frame | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong at one place, with all its occurrences: ``leads`` is the call that each is shown at.

    ``wall_us`` is the calls' part of the wall clock; ``saves_us`` what the replay of the run takes less with the
    change made (None: nothing is claimed), both predicted. ``module`` has ``*`` for layer numbers.
    """

    kind: str
    title: str
    severity: Severity
    module: str
    source: Frame | None
    why: str
    change: str
    leads: tuple[int, ...] = field(repr=False)
    calls: tuple[int, ...] = field(repr=False)
    wall_us: float
    saves_us: float | None

    @property
    def count(self) -> int:
        """How often it occurs."""
        return len(self.leads)
