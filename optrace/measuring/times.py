"""Predicted times against measured ones, call by call: how far off ops are, and whether their bounds are right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from optrace.cost.device import peak_flops
from optrace.cost.pricing import OpCost
from optrace.cost.profiles import GpuProfile
from optrace.diagnosis import Bound
from optrace.measuring.record import MeasuredRun
from optrace.report import Report
from optrace.timeline import Task, Timeline, simulate, tasks_of


@dataclass(frozen=True, slots=True)
class OpTimes:
    """Device time of an overload's calls in all programs, microseconds: both sums, and the sum of their differences'
    sizes call by call."""

    op: str
    calls: int
    predicted_us: float
    measured_us: float
    off_us: float


@dataclass(frozen=True, slots=True)
class BoundTimes:
    """Microseconds of measured wall clock, and those of calls whose bound was predicted as measured."""

    wall_us: float = 0.0
    agreed_us: float = 0.0

    def __add__(self, other: BoundTimes) -> BoundTimes:
        return BoundTimes(self.wall_us + other.wall_us, self.agreed_us + other.agreed_us)

    @property
    def share(self) -> float:
        """The share of the wall clock that agrees; 1 where there is none."""
        return self.agreed_us / self.wall_us if self.wall_us else 1.0


def measured_device_us(run: MeasuredRun) -> list[float]:
    """Device time of each call: the sum of its launches'."""
    return [sum(launch.us for launch in launches) for launches in run.launches]


def add_op_times(run: MeasuredRun, priced: Report, rows: dict[str, OpTimes]) -> None:
    """Enter the run's calls into ``rows``."""
    for call, (cost, measured) in enumerate(zip(priced.costs, measured_device_us(run), strict=True)):
        op = run.graph.facts(call).name
        predicted = cost.device_us or 0.0
        before = rows.get(op) or OpTimes(op, 0, 0.0, 0.0, 0.0)
        rows[op] = OpTimes(
            op,
            before.calls + 1,
            before.predicted_us + predicted,
            before.measured_us + measured,
            before.off_us + abs(predicted - measured),
        )


def replay_measured_kernels(run: MeasuredRun, priced: Report, *, host_scale: float = 1.0) -> Timeline:
    """The predicted host, its times ``host_scale`` as long, with the launches and kernel times that were measured."""
    host = priced.pricing.host
    tasks = list(_tasks(run, priced, host_scale))
    return simulate(
        tasks,
        sync_us=host.sync_us * host_scale,
        queue_depth=host.queue_depth,
        tail_us=priced.priced.tail_us * host_scale,
        synchronize_us=host.synchronize_us * host_scale,
    )


def _tasks(run: MeasuredRun, priced: Report, host_scale: float) -> Iterator[Task]:
    for task, launches, us in zip(
        tasks_of(priced.priced), run.launches, measured_device_us(run), strict=True
    ):
        host = task.host
        if host_scale != 1.0:
            host = replace(
                host,
                python_us=host.python_us * host_scale,
                autograd_us=host.autograd_us * host_scale,
                dispatch_us=host.dispatch_us * host_scale,
                launch_us=host.launch_us * host_scale,
            )
        yield replace(task, host=host, launches=len(launches), device_us=us)


def compare_bounds(run: MeasuredRun, priced: Report) -> BoundTimes | None:
    """How much of the measured wall clock belongs to calls whose bound is as measured: measured kernels behind a host
    whose times add up to the measured issue time; memory or compute by the side of the roofline on which a call's
    counts put it, bytes that stay in the L2 at its bandwidth."""
    if run.issue_us is None or not priced.timeline.issue_us:
        return None
    measured = replay_measured_kernels(run, priced, host_scale=run.issue_us / priced.timeline.issue_us)
    found = BoundTimes()
    for span, cost, predicted in zip(measured.spans, priced.costs, priced.bounds, strict=True):
        bound = _measured_bound(span.gap_us > span.busy_us, cost, priced.pricing.gpu, bool(span.busy_us))
        found += BoundTimes(span.wall_us, span.wall_us if bound == predicted else 0.0)
    return found


def _measured_bound(idle: bool, cost: OpCost, gpu: GpuProfile, busy: bool) -> Bound:
    if cost.work.host_wait:
        return "sync"
    if not busy:
        return "host"
    if idle:
        return "launch"
    peak = peak_flops(cost.work, gpu)
    flops = cost.work.matmul_flops or cost.work.flops or 0
    math_us = flops / peak * 1e6 if peak else 0.0
    hbm_bytes = cost.hbm_bytes or 0
    in_l2 = max(cost.work.tensor_bytes - hbm_bytes, 0)
    moving_us = hbm_bytes / (gpu.bandwidth_tb_s * 1e6) + in_l2 / (gpu.l2_bandwidth_tb_s * 1e6)
    return "compute" if math_us > moving_us else "memory"


def off_by(rows: Sequence[OpTimes]) -> float:
    """Time-weighted error of single calls: the sizes of all differences over all that was measured."""
    measured = sum(row.measured_us for row in rows)
    return sum(row.off_us for row in rows) / measured if measured else 0.0
