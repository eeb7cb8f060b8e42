"""Predicted against measured, over the programs of a record.

The calls of a record are priced without looking at what they launched; then both are laid side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from optrace.cost.profiles import Pricing
from optrace.measuring.flops import torch_flops
from optrace.measuring.record import DramKernel, MeasuredRun
from optrace.measuring.times import (
    BoundTimes,
    OpTimes,
    add_op_times,
    compare_bounds,
    replay_measured_kernels,
)
from optrace.report import Report, report


@dataclass(frozen=True, slots=True)
class Pair:
    """A figure of one program. ``error`` is relative and signed: +0.1 is 10 % too high; None where nothing was
    measured to be relative to."""

    program: str
    predicted: float
    measured: float

    @property
    def error(self) -> float | None:
        if not self.measured:
            return None if self.predicted else 0.0
        return (self.predicted - self.measured) / self.measured


@dataclass(frozen=True, slots=True)
class Distribution:
    """Relative errors over ``count`` programs: ``bias`` is the median of the signed ones, the rest of their sizes.
    ``measured_zero`` programs more have no relative error: something was predicted, nothing measured."""

    count: int
    median: float
    mean: float
    p90: float
    max: float
    bias: float
    measured_zero: int = 0

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> Distribution | None:
        """None where there is nothing to compare."""
        known = [pair.error for pair in pairs]
        errors = np.array([error for error in known if error is not None])
        if not len(errors):
            return None
        sizes = np.abs(errors)
        return cls(
            len(errors),
            float(np.median(sizes)),
            float(np.mean(sizes)),
            float(np.percentile(sizes, 90)),
            float(np.max(sizes)),
            float(np.median(errors)),
            len(known) - len(errors),
        )


def worst(pairs: Iterable[Pair], n: int) -> list[Pair]:
    """The ``n`` programs that are furthest off, those with nothing measured first; exact ones left out."""
    wrong = [pair for pair in pairs if pair.error != 0.0]
    return sorted(wrong, key=lambda pair: math.inf if pair.error is None else abs(pair.error), reverse=True)[
        :n
    ]


@dataclass(frozen=True, slots=True)
class OpClass:
    """Calls of one overload: how many got the exact number of launches, and both sums."""

    op: str
    calls: int
    exact: int
    predicted: int
    measured: int


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Everything compared. ``figures`` maps a name to its pairs, a program each; ``op_times`` stands by time missed.

    ``bounds``: how much of the measured wall clock belongs to calls whose bound is right.
    """

    figures: Mapping[str, Sequence[Pair]]
    op_classes: Sequence[OpClass]
    not_comparable: Mapping[str, str]
    op_times: Sequence[OpTimes] = ()
    bounds: BoundTimes = BoundTimes()  # noqa: RUF009 - a frozen value

    @property
    def op_calls_exact(self) -> float:
        """The share of calls whose number of launches is right."""
        calls = sum(row.calls for row in self.op_classes)
        return sum(row.exact for row in self.op_classes) / calls if calls else 1.0

    @property
    def programs_within_1pct(self) -> float:
        """The share of programs whose launches in all are off by at most 1 %."""
        pairs = self.figures.get("launches", ())
        close = sum(pair.error is not None and abs(pair.error) <= 0.01 for pair in pairs)
        return close / len(pairs) if pairs else 1.0


def compare(
    runs: Iterable[MeasuredRun],
    pricing: Pricing,
    *,
    dram: Mapping[str, Sequence[DramKernel]] | None = None,
    op: str | None = None,
    progress: Callable[[str], None] = lambda _name: None,
) -> Accuracy:
    """Price each run and compare. ``op`` (``aten.sum``, or an overload) narrows launches to one op.

    The host is taken at the speed that it had: its profile is scaled by the reference loop, where a run has timed it.
    """
    figures: dict[str, list[Pair]] = {name: [] for name in _FIGURES}
    rows: dict[str, list[int]] = {}
    apart: dict[str, str] = {}
    times: dict[str, OpTimes] = {}
    bounds = BoundTimes()
    for run in runs:
        progress(run.name)
        host = pricing.host.at_speed(run.graph.info.python_loop_us)
        priced = report(run.graph, replace(pricing, host=host))
        counted = _count_launches(run, priced, op, rows)
        if op is not None:
            if counted is not None:
                figures["launches"].append(counted)
            continue
        for name, figure in _FIGURES.items():
            pair = figure(run, priced)
            if pair is not None:
                figures[name].append(Pair(run.name, *pair))
        add_op_times(run, priced, times)
        bounds += compare_bounds(run, priced) or BoundTimes()
        if dram is not None and run.name in dram:
            problem = _compare_dram(run, priced, dram[run.name], figures)
            if problem:
                apart[run.name] = problem
    classes = [OpClass(name, *values) for name, values in rows.items()]
    return Accuracy(
        {name: pairs for name, pairs in figures.items() if pairs},
        sorted(classes, key=lambda row: row.exact - row.calls),
        apart,
        sorted(times.values(), key=lambda row: -row.off_us),
        bounds,
    )


def _count_launches(
    run: MeasuredRun, priced: Report, op: str | None, rows: dict[str, list[int]]
) -> Pair | None:
    """Enter the run's calls into ``rows``; the launches of them all, or None where none is of ``op``."""
    calls = predicted = measured = 0
    for call, (cost, launches) in enumerate(zip(priced.costs, run.launches, strict=True)):
        facts = run.graph.facts(call)
        if op is not None and op not in (facts.name, facts.packet):
            continue
        calls += 1
        row = rows.setdefault(facts.name, [0, 0, 0, 0])
        row[0] += 1
        row[1] += cost.launches == len(launches)
        row[2] += cost.launches or 0
        row[3] += len(launches)
        predicted += cost.launches or 0
        measured += len(launches)
    return Pair(run.name, predicted, measured) if calls else None


def _compare_dram(
    run: MeasuredRun, priced: Report, kernels: Sequence[DramKernel], figures: dict[str, list[Pair]]
) -> str | None:
    """Compare HBM bytes of kernels; what stops it, where something does."""
    recorded = sum(launch.kind == "kernel" for launches in run.launches for launch in launches)
    if recorded != len(kernels):
        return f"{len(kernels)} kernels with counters, {recorded} in the record"
    # The counters do not see what the copy engine moves.
    costs = [cost for cost in priced.costs if cost.work.kernels]
    read = sum(cost.traffic.read - cost.traffic.copy_read for cost in costs)
    written = sum(cost.traffic.written - cost.traffic.copy_written for cost in costs)
    pairs = {
        "hbm_bytes": (read + written, sum(k.read + k.written for k in kernels)),
        "hbm_read": (read, sum(k.read for k in kernels)),
        "hbm_written": (written, sum(k.written for k in kernels)),
        "tensor_bytes": (
            sum(cost.work.tensor_bytes for cost in costs),
            sum(k.read + k.written for k in kernels),
        ),
    }
    for name, pair in pairs.items():
        figures.setdefault(name, []).append(Pair(run.name, *pair))
    return None


def _launches(run: MeasuredRun, priced: Report) -> tuple[float, float] | None:
    return priced.totals["launches"].value, sum(len(launches) for launches in run.launches)


def _added_memory(run: MeasuredRun, priced: Report) -> tuple[float, float] | None:
    if run.memory_base is None or run.memory_peak is None:
        return None
    memory = priced.priced.memory
    return memory.peak - memory.base, run.memory_peak - run.memory_base


def _device(run: MeasuredRun, priced: Report) -> tuple[float, float] | None:
    return None if run.device_us is None else (priced.totals["device_us"].value, run.device_us)


def _wall(run: MeasuredRun, priced: Report) -> tuple[float, float] | None:
    return None if run.wall_us is None else (priced.timeline.wall_us, run.wall_us)


def _issue(run: MeasuredRun, priced: Report) -> tuple[float, float] | None:
    return None if run.issue_us is None else (priced.timeline.issue_us, run.issue_us)


def _wall_with_measured_kernels(run: MeasuredRun, priced: Report) -> tuple[float, float] | None:
    """The host model alone: predicted host times in front of the kernel times that were measured."""
    return None if run.wall_us is None else (replay_measured_kernels(run, priced).wall_us, run.wall_us)


def _device_from_bytes(run: MeasuredRun, priced: Report) -> tuple[float, float] | None:
    """For comparison: tensor bytes at the datasheet's bandwidth."""
    if run.device_us is None:
        return None
    return priced.totals["tensor_bytes"].value / (priced.pricing.gpu.bandwidth_tb_s * 1e6), run.device_us


def _wall_from_tax(run: MeasuredRun, priced: Report) -> tuple[float, float] | None:
    """For comparison: 10 us a launch (the true number of them), and tensor bytes at the datasheet's bandwidth."""
    if run.wall_us is None:
        return None
    traffic_us = priced.totals["tensor_bytes"].value / (priced.pricing.gpu.bandwidth_tb_s * 1e6)
    return 10.0 * sum(map(len, run.launches)) + traffic_us, run.wall_us


def _matmul_flops(run: MeasuredRun, priced: Report) -> tuple[float, float] | None:
    """Over the calls that torch's flop counter counts, and counts right."""
    predicted = measured = 0
    for node, cost in zip(run.graph, priced.costs, strict=True):
        theirs = torch_flops(node)
        if theirs:
            measured += theirs
            predicted += cost.work.matmul_flops or 0
    return (predicted, measured) if measured else None


#: Figures of a whole program: predicted and measured, or None where the record has none.
_FIGURES: dict[str, Callable[[MeasuredRun, Report], tuple[float, float] | None]] = {
    "launches": _launches,
    "flops": _matmul_flops,
    "peak_bytes": _added_memory,
    "device_us": _device,
    "device_us_from_bytes": _device_from_bytes,
    "wall_us": _wall,
    "wall_us_measured_kernels": _wall_with_measured_kernels,
    "wall_us_from_tax": _wall_from_tax,
    "issue_us": _issue,
}
