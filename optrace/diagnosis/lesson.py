"""The plain sum to start from: a fixed tax a kernel, and bytes over bandwidth, with nothing overlapped.

It counts a kernel for each call that launches anything, two tensors for it (its largest input and its
largest output) and three for a matmul, and knows no cache, no overlap and no math. It is a floor to reason
with, kept beside the model's own figures.
"""

from __future__ import annotations

from dataclasses import dataclass

from optrace.cost.pricing import PricedGraph
from optrace.cost.work import MATRIX_KINDS


@dataclass(frozen=True, slots=True)
class Lesson:
    """``traffic_us`` is ``bytes`` at the full bandwidth, ``tax_us`` dispatch and launch once a kernel."""

    kernels: int
    bytes: int
    traffic_us: float
    tax_us: float

    @property
    def ceiling(self) -> str:
        """The larger of the two: ``bandwidth`` or ``launch``."""
        return "bandwidth" if self.traffic_us >= self.tax_us else "launch"


def lesson(priced: PricedGraph) -> Lesson:
    """The lesson's sum over a priced graph."""
    kernels = nbytes = 0
    for cost in priced.costs:
        if cost.launches == 0:
            continue
        kernels += 1
        reads = sorted((access.nbytes for access in cost.work.reads), reverse=True)
        writes = sorted((access.nbytes for access in cost.work.writes), reverse=True)
        inputs = 2 if cost.work.kind in MATRIX_KINDS else 1
        nbytes += sum(reads[:inputs]) + sum(writes[:1])
    gpu, host = priced.pricing.gpu, priced.pricing.host
    return Lesson(
        kernels=kernels,
        bytes=nbytes,
        traffic_us=nbytes / (gpu.bandwidth_tb_s * 1e6),
        tax_us=kernels * (host.dispatch_us + host.launch_us),
    )
