"""Costs that add: what several calls take together, and which cause takes most of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields

import numpy as np

from optrace.cost.host import HostTime
from optrace.cost.work import Work
from optrace.diagnosis import Bound
from optrace.graph.columns import Floats
from optrace.report import Report


@dataclass(frozen=True, slots=True)
class CostSum:
    """The costs of ``calls`` calls. Each ``unpriced_*`` and ``uncounted_*`` says how many of the calls a sum
    leaves out because their figure is not known; ``guesses`` counts calls that no rule speaks for.

    The wall clock's microseconds by cause: ``launch_us`` (device idle, nothing issued), ``memory_us`` and
    ``compute_us`` (device time by its side of the roofline), ``sync_us`` (idle because the host waited).
    """

    calls: int = 0
    launches: int = 0
    kernels: int = 0
    memcpys: int = 0
    memsets: int = 0
    unpriced: int = 0
    tensor_bytes: int = 0
    hbm_read: int = 0
    hbm_written: int = 0
    flops: int = 0
    matmul_flops: int = 0
    uncounted_flops: int = 0
    guesses: int = 0
    host: HostTime = field(default_factory=HostTime)
    device_us: float = 0.0
    launch_us: float = 0.0
    memory_us: float = 0.0
    compute_us: float = 0.0
    sync_us: float = 0.0

    def __add__(self, other: CostSum) -> CostSum:
        return CostSum(*(getattr(self, name) + getattr(other, name) for name in _FIELDS))

    @property
    def hbm_bytes(self) -> int:
        return self.hbm_read + self.hbm_written

    @property
    def intensity(self) -> float | None:
        """FLOPs a byte that crosses HBM; None where some FLOPs are not known or no byte crosses."""
        if self.uncounted_flops or not self.hbm_bytes:
            return None
        return self.flops / self.hbm_bytes

    @property
    def wall_us(self) -> float:
        """Share of the wall clock, in microseconds."""
        return self.launch_us + self.memory_us + self.compute_us + self.sync_us


_FIELDS = tuple(item.name for item in fields(CostSum))


def costs_of(report: Report, calls: Iterable[int]) -> CostSum:
    """The costs of several calls together."""
    at = np.fromiter(calls, np.int64)
    if not len(at):
        return CostSum()
    costs, spans = report.costs, report.timeline.spans
    numbers, times = np.unique(costs.works.of[at], return_counts=True)
    works = [
        (costs.works.distinct[number], count) for number, count in zip(numbers, times.tolist(), strict=True)
    ]

    def counted(figure: Callable[[Work], int | None]) -> int:
        return sum(count * (figure(work) or 0) for work, count in works)

    def summed(column: Floats) -> float:
        figures: list[float] = np.nan_to_num(column[at]).tolist()
        return sum(figures)

    crossing = ~np.isnan(costs.launches[at])
    on_math, host = costs.bound_by_compute[at], costs.host
    return CostSum(
        calls=len(at),
        launches=counted(lambda work: work.launches),
        kernels=counted(lambda work: work.kernels),
        memcpys=counted(lambda work: work.memcpys),
        memsets=counted(lambda work: work.memsets),
        unpriced=int(np.isnan(costs.device_us[at]).sum()),
        tensor_bytes=counted(lambda work: work.tensor_bytes),
        hbm_read=int(costs.traffic.read[at][crossing].sum()),
        hbm_written=int(costs.traffic.written[at][crossing].sum()),
        flops=counted(lambda work: work.flops),
        matmul_flops=counted(lambda work: work.matmul_flops),
        uncounted_flops=counted(lambda work: work.flops is None),
        guesses=counted(lambda work: work.source == "unknown"),
        host=HostTime(*map(summed, (host.python_us, host.autograd_us, host.dispatch_us, host.launch_us))),
        device_us=summed(costs.device_us),
        launch_us=summed(spans.gap_us),
        memory_us=sum(spans.exposed_us[at][~on_math].tolist(), 0.0),
        compute_us=sum(spans.exposed_us[at][on_math].tolist(), 0.0),
        sync_us=summed(spans.wait_us),
    )


def shared_bound(bounds: Iterable[Bound], cost: CostSum) -> Bound:
    """What bounds several calls: what bounds each of them where that is one thing, else the cause that
    takes most of their wall clock."""
    distinct = set(bounds)
    if len(distinct) == 1:
        return distinct.pop()
    causes: dict[Bound, float] = {
        "launch": cost.launch_us,
        "memory": cost.memory_us,
        "compute": cost.compute_us,
        "sync": cost.sync_us,
    }
    largest = max(causes, key=lambda cause: causes[cause])
    if causes[largest] > 0:
        return largest
    # Nothing of the wall clock is theirs: hidden behind other streams, without a price, or free.
    return next(
        bound for bound in ("unknown", "sync", "compute", "memory", "launch", "host") if bound in distinct
    )
