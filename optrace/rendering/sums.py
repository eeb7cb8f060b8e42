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


def costs_of(report: Report, calls: Iterable[int]) -> CostSum:
    """The costs of several calls together."""
    rows = [_figures(report, call) for call in calls]
    if not rows:
        return CostSum()
    *figures, python_us, autograd_us, dispatch_us, launch_us = map(sum, zip(*rows, strict=True))
    named = dict(zip(_SUMMED, figures, strict=True))
    return CostSum(host=HostTime(python_us, autograd_us, dispatch_us, launch_us), **named)


#: What ``_figures`` gives, before the four layers of host time.
_SUMMED = tuple(name for name in _FIELDS if name != "host")


def _figures(report: Report, call: int) -> tuple[float, ...]:
    """One call's figures as plain numbers, which a hundred thousand calls are summed from."""
    cost, span = report.costs[call], report.timeline.spans[call]
    work, host = cost.work, cost.host
    on_math = cost.device is not None and cost.device.roof == "compute"
    return (
        1,
        work.launches or 0,
        work.kernels or 0,
        work.memcpys,
        work.memsets,
        cost.device is None,
        work.tensor_bytes,
        cost.hbm_read or 0,
        cost.hbm_written or 0,
        work.flops or 0,
        work.matmul_flops or 0,
        work.flops is None,
        work.source == "unknown",
        cost.device_us or 0.0,
        span.gap_us,
        0.0 if on_math else span.exposed_us,
        span.exposed_us if on_math else 0.0,
        span.wait_us,
        host.python_us,
        host.autograd_us,
        host.dispatch_us,
        host.launch_us,
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
