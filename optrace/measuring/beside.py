"""A measured step beside its prediction: in total, and by op with those first that make most of the error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optrace.measuring.counters import CountedKernel
from optrace.measuring.recorder import Measurement, Spread
from optrace.report import Report


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


def figures(report: Report, measured: Measurement, kernels: Sequence[CountedKernel] = ()) -> list[Figure]:
    """The step in total. Bytes through HBM are those of kernels, and are left out where the counters saw other kernels
    than the profiler."""
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
    if kernels and len(kernels) == _kernels(measured):
        predicted = sum(cost.hbm_bytes or 0 for cost in report.costs if cost.work.kernels)
        found.append(
            Figure("HBM bytes", "bytes", predicted, sum(kernel.read + kernel.written for kernel in kernels))
        )
    return found


def _kernels(measured: Measurement) -> int:
    launches = (*measured.stray, *(launch for call in measured.launches for launch in call))
    return sum(launch.kind == "kernel" for launch in launches)


def counters_mismatch(measured: Measurement, kernels: Sequence[CountedKernel]) -> str:
    """Why the counters cannot be laid beside the step; empty where they can."""
    profiled = _kernels(measured)
    if len(kernels) == profiled:
        return ""
    return (
        f"Nsight Compute counted {len(kernels)} kernels and the profiler {profiled}: bytes are not compared"
    )


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
