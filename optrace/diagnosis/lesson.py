"""The plain sum to start from: a fixed tax a kernel, and bytes over bandwidth, with nothing overlapped.

It counts a kernel for each call that launches anything, two tensors for it (its largest input and its
largest output) and three for a matmul, and knows no cache, no overlap and no math. It is a floor to reason
with, kept beside the model's own figures.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optrace.cost.pricing import PricedGraph
from optrace.cost.work import MATRIX_KINDS, Work


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


def plain_counts(work: Work) -> tuple[int, int]:
    """The kernels and bytes that the sum counts for a call."""
    if work.launches == 0:
        return 0, 0
    reads = sorted((access.nbytes for access in work.reads), reverse=True)
    writes = sorted((access.nbytes for access in work.writes), reverse=True)
    inputs = 2 if work.kind in MATRIX_KINDS else 1
    return 1, sum(reads[:inputs]) + sum(writes[:1])


def lesson(priced: PricedGraph) -> Lesson:
    """The lesson's sum over a priced graph."""
    works = priced.costs.works
    counts = [plain_counts(work) for work in works.distinct]
    calls = np.bincount(works.of, minlength=len(counts)).tolist()
    kernels = sum(count * times for (count, _), times in zip(counts, calls, strict=True))
    nbytes = sum(size * times for (_, size), times in zip(counts, calls, strict=True))
    gpu, host = priced.pricing.gpu, priced.pricing.host
    return Lesson(
        kernels=kernels,
        bytes=nbytes,
        traffic_us=nbytes / (gpu.bandwidth_tb_s * 1e6),
        tax_us=kernels * (host.dispatch_us + host.launch_us),
    )
