"""What bounds a call: the reason for most of its share of the wall clock."""

from __future__ import annotations

from typing import Literal

from optrace.cost.pricing import OpCost
from optrace.timeline import Span

Bound = Literal["launch", "memory", "compute", "sync", "host", "unknown"]
BOUNDS: tuple[Bound, ...] = ("launch", "memory", "compute", "sync", "host", "unknown")


def bound_of(cost: OpCost, span: Span) -> Bound:
    """``launch`` where the device stood idle before the call longer than it was busy with it; else the
    side of the roofline its device time comes from. A call that makes the host wait is ``sync``, one that
    launches nothing ``host``, one without a price ``unknown``."""
    if cost.work.host_wait:
        return "sync"
    if cost.device is None:
        return "unknown"
    if not cost.launches:
        return "host"
    if span.gap_us > span.busy_us:
        return "launch"
    return cost.device.roof
