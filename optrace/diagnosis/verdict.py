"""The verdict on a whole run: which of the four causes takes most of the wall clock, and what lifts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from optrace import units
from optrace.cost.pricing import PricedGraph
from optrace.diagnosis.cuda_graph import replay_us
from optrace.timeline import Timeline

Bottleneck = Literal["launch", "memory", "compute", "sync"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Microseconds of the wall clock by cause; ``bottleneck`` is the largest, None where the device does nothing.
    ``host_tail_us`` is left over: the host after the last kernel. ``idle``: every call is known to launch nothing.

    ``graph_us`` is what a replayed CUDA graph of the same launches would take.
    """

    bottleneck: Bottleneck | None
    launch_us: float
    memory_us: float
    compute_us: float
    sync_us: float
    host_tail_us: float
    wall_us: float
    graph_us: float
    idle: bool

    def share(self, cause: Bottleneck) -> float:
        """A cause's part of the wall clock, 0 to 1."""
        return getattr(self, f"{cause}_us") / self.wall_us if self.wall_us else 0.0

    @property
    def sentence(self) -> str:
        """The verdict in one sentence, with the cure that fits."""
        cause = self.bottleneck
        if self.idle:
            return (
                "nothing to bound: no call launches anything on the GPU, and what runs on the CPU is not priced; "
                "trace the program with its model and inputs on cuda, which needs no GPU"
            )
        if cause is None:
            return "nothing to bound: no call is known to launch anything on the GPU"
        share = f"{100 * self.share(cause):.0f} %"
        saved = self.wall_us - self.graph_us
        times = f"{units.predicted_us(self.graph_us)} instead of {units.predicted_us(self.wall_us)}"
        graph = times if saved > 0 else "nothing to gain"
        lifted = (
            f"a CUDA graph would help ({graph})"
            if saved > 0
            else "too few launches for a CUDA graph to pay, fusion would spare some"
        )
        return {
            "launch": f"launch-bound: the GPU waits for the host {share} of the step; {lifted}",
            "memory": f"memory-bound: {share} of the step moves bytes; "
            f"fusing neighbours saves traffic, a CUDA graph saves only launches ({graph})",
            "compute": f"compute-bound: {share} of the step is arithmetic: lower precision or less work helps, fusion "
            f"hardly, a CUDA graph saves only launches ({graph})",
            "sync": f"sync-bound: the GPU idles {share} of the step because the host waited for it; "
            "take the waits out of the step first, they also stop a CUDA graph",
        }[cause]


def verdict(priced: PricedGraph, timeline: Timeline) -> Verdict:
    """Sum the spans by cause: gaps are launch, device time goes to its side of the roofline."""
    costs, spans = priced.costs, timeline.spans
    launch, sync = float(spans.gap_us.sum()), float(spans.wait_us.sum())
    device = float(spans.exposed_us.sum())
    compute = float(spans.exposed_us[costs.bound_by_compute].sum())
    memory = float(spans.exposed_us[~costs.bound_by_compute].sum())
    launches = int(np.nansum(costs.launches))
    sums: Mapping[Bottleneck, float] = {"memory": memory, "launch": launch, "compute": compute, "sync": sync}
    gpu = priced.pricing.gpu
    largest = max(sums, key=lambda cause: sums[cause])
    return Verdict(
        bottleneck=largest if sums[largest] else None,
        launch_us=launch,
        memory_us=memory,
        compute_us=compute,
        sync_us=sync,
        host_tail_us=timeline.host_tail_us,
        wall_us=timeline.wall_us,
        idle=not costs.launches.any(),  # not a number: not known
        graph_us=replay_us(device, launches, gpu, max(1, priced.graph.info.steps)),
    )
