"""What bounds a call: the reason for most of its share of the wall clock."""

from __future__ import annotations

from typing import Literal

import numpy as np

from optrace.cost.pricing import Costs
from optrace.timeline import Spans

Bound = Literal["launch", "memory", "compute", "sync", "host", "unknown"]
BOUNDS: tuple[Bound, ...] = ("launch", "memory", "compute", "sync", "host", "unknown")


def bounds_of(costs: Costs, spans: Spans) -> tuple[Bound, ...]:
    """For each call ``launch`` where the device stood idle before it longer than it was busy with it; else the
    side of the roofline its device time comes from. A call that makes the host wait is ``sync``, one that
    launches nothing ``host``, one without a price ``unknown``."""
    rows = np.select(
        [
            costs.host_wait,
            np.isnan(costs.device_us),
            costs.launches == 0,
            spans.gap_us > spans.busy_us,
            costs.bound_by_compute,
        ],
        [BOUNDS.index(bound) for bound in ("sync", "unknown", "host", "launch", "compute")],
        BOUNDS.index("memory"),
    )
    return tuple(BOUNDS[row] for row in rows.tolist())
