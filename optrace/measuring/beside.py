"""A measured step beside its prediction: in total, and by op with those first that make most of the error."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from optrace.measuring.counters import Counted
from optrace.measuring.record import Launch
from optrace.measuring.recorder import Measurement, Spread
from optrace.report import Report

_NOTHING_COUNTED = Counted()


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the step. ``unit``: ``us``, ``bytes`` that move, ``allocated`` bytes or a ``count``."""

    name: str
    unit: str
    predicted: float
    measured: float
    spread: Spread | None = None

    @property
    def error(self) -> float | None:
        """Relative and signed; None where nothing was measured to be relative to."""
        if not self.measured:
            return None if self.predicted else 0.0
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True)
class OpFigures:
    """All calls of one overload, in microseconds of device time. ``apart_us`` is the sum of the sizes of its calls'
    errors; ``event_us`` and ``event_cold_us`` are None where events gave nothing."""

    op: str
    calls: int
    predicted_launches: int
    launches: int
    predicted_us: float
    measured_us: float
    apart_us: float
    event_us: float | None
    event_cold_us: float | None


def figures(report: Report, measured: Measurement, counted: Counted = _NOTHING_COUNTED) -> list[Figure]:
    """The step in total. Bytes through HBM are those of kernels, and are left out where the counters saw other kernels
    than the profiler; where the time for counting was over, those of the calls whose kernels were all counted."""
    timeline, memory = report.timeline, report.priced.memory
    count = sum(map(len, measured.launches)) + len(measured.stray)
    found = [
        Figure("wall clock", "us", timeline.wall_us, measured.wall.median, measured.wall),
        Figure("issue (host)", "us", timeline.issue_us, measured.issue.median, measured.issue),
        Figure("back to back", "us", timeline.b2b_us, measured.back_to_back.median, measured.back_to_back),
        Figure("device time", "us", report.totals["device_us"].value, measured.device_us),
        Figure("launches", "count", report.totals["launches"].value, count),
        Figure(
            "memory it adds",
            "allocated",
            memory.peak - memory.base,
            measured.memory_peak - measured.memory_base,
        ),
    ]
    calls = _calls_counted(measured, counted)
    if calls:
        last = sum(map(_kernels_in, measured.launches[:calls]))
        kernels = counted.kernels if counted.complete else counted.kernels[:last]
        costs = [cost for cost in report.costs[:calls] if cost.work.kernels]
        found.append(
            Figure(
                "HBM bytes" if counted.complete else f"HBM bytes, first {last} kernels",
                "bytes",
                sum(cost.hbm_bytes or 0 for cost in costs),
                sum(kernel.read + kernel.written for kernel in kernels),
            )
        )
    return found


def _kernels_in(launches: Sequence[Launch]) -> int:
    return sum(launch.kind == "kernel" for launch in launches)


def _kernels(measured: Measurement) -> int:
    return _kernels_in(measured.stray) + sum(map(_kernels_in, measured.launches))


def _calls_counted(measured: Measurement, counted: Counted) -> int:
    """How many calls from the first on had all their kernels counted; 0 where the two do not line up, or part of them
    may belong to no call."""
    if counted.complete:
        return len(measured.launches) if len(counted.kernels) == _kernels(measured) else 0
    if _kernels_in(measured.stray):
        return 0
    upto = list(accumulate(map(_kernels_in, measured.launches)))
    return bisect_right(upto, len(counted.kernels))


def remark_on_counters(measured: Measurement, counted: Counted) -> str:
    """What is to be known of the counters: that they cannot be laid beside the step, or stop before its end; empty
    where neither is."""
    profiled, kernels = _kernels(measured), len(counted.kernels)
    if not counted.complete:
        return f"the time for counting was over after {kernels} of {profiled} kernels (see --limit): the rest is not counted"
    if kernels and kernels != profiled:
        return f"Nsight Compute counted {kernels} kernels and the profiler {profiled}: bytes are not compared"
    return ""


def by_op(report: Report, measured: Measurement) -> list[OpFigures]:
    """Device time by overload, the largest sum of errors first; ops that launch nothing are left out."""
    calls_of: dict[str, list[int]] = {}
    for call, (cost, launches) in enumerate(zip(report.costs, measured.launches, strict=True)):
        if launches or cost.launches:
            calls_of.setdefault(report.graph.facts(call).name, []).append(call)
    call_us = measured.call_us
    rows = []
    for op, calls in calls_of.items():
        predicted = [report.costs[call].device_us or 0.0 for call in calls]
        rows.append(
            OpFigures(
                op,
                len(calls),
                sum(report.costs[call].launches or 0 for call in calls),
                sum(len(measured.launches[call]) for call in calls),
                sum(predicted),
                sum(call_us[call] for call in calls),
                sum(abs(us - call_us[call]) for us, call in zip(predicted, calls, strict=True)),
                _sum(measured.event_us, calls),
                _sum(measured.event_cold_us, calls),
            )
        )
    return sorted(rows, key=lambda row: -row.apart_us)


def _sum(times: Sequence[float], calls: Sequence[int]) -> float | None:
    return sum(times[call] for call in calls) if times else None


def time_weighted_error(rows: Sequence[OpFigures]) -> float | None:
    """The sizes of all calls' errors over all that was measured; None where nothing was."""
    measured = sum(row.measured_us for row in rows)
    return sum(row.apart_us for row in rows) / measured if measured else None
