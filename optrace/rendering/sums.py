"""Costs that add: what several calls take together, and which cause takes most of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from optrace.cost.host import HostTime
from optrace.diagnosis import Bound
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


def cost_of(report: Report, call: int) -> CostSum:
    """One call's costs, ready to be added to others'."""
    cost, span = report.costs[call], report.timeline.spans[call]
    work = cost.work
    on_math = cost.device is not None and cost.device.roof == "compute"
    return CostSum(
        calls=1,
        launches=work.launches or 0,
        kernels=work.kernels or 0,
        memcpys=work.memcpys,
        memsets=work.memsets,
        unpriced=int(cost.device is None),
        tensor_bytes=work.tensor_bytes,
        hbm_read=cost.traffic.read,
        hbm_written=cost.traffic.written,
        flops=work.flops or 0,
        matmul_flops=work.matmul_flops or 0,
        uncounted_flops=int(work.flops is None),
        guesses=int(work.source == "unknown"),
        host=cost.host,
        device_us=cost.device_us or 0.0,
        launch_us=span.gap_us,
        memory_us=0.0 if on_math else span.exposed_us,
        compute_us=span.exposed_us if on_math else 0.0,
        sync_us=span.wait_us,
    )


def costs_of(report: Report, calls: Iterable[int]) -> CostSum:
    """The costs of several calls together."""
    total = CostSum()
    for call in calls:
        total = total + cost_of(report, call)
    return total


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
