"""The two cures side by side: a CUDA graph for the launches, fusion for the bytes, and both.

Each row is a whole program priced by itself; what two cures save is never added up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from optrace.cost.pricing import PricedGraph
from optrace.diagnosis.compiled import compiled, entries
from optrace.diagnosis.cuda_graph import Blocker, blockers
from optrace.diagnosis.fusion import Fusion, fuse
from optrace.diagnosis.verdict import Bottleneck, Verdict, verdict
from optrace.timeline import Timeline, replay

#: A cure is worth it where it takes at least this part off the wall clock.
WORTH_IT = 0.05


@dataclass(frozen=True, slots=True)
class Row:
    """One way to run the step. ``complete``: every call has a price; ``bottleneck`` is what bounds it then."""

    name: str
    launches: int
    hbm_bytes: int
    peak_bytes: int
    host_us: float
    device_us: float
    wall_us: float
    speed_up: float
    bottleneck: Bottleneck | None
    complete: bool

    @property
    def worth_it(self) -> bool:
        return self.speed_up * (1.0 - WORTH_IT) > 1.0


@dataclass(frozen=True, slots=True)
class Region:
    """Eager calls that become one kernel. Bytes and times are of the calls in eager, and of the kernel.

    A call that other regions compute again counts in the first of them. ``us_after`` is None where a call's price
    is not known.
    """

    calls: tuple[int, ...]
    launches_before: int
    launches_after: int
    bytes_before: int
    bytes_after: int
    device_us_before: float
    device_us_after: float | None
    lines: tuple[str, ...]

    @property
    def launches_saved(self) -> int:
        return self.launches_before - self.launches_after

    @property
    def device_us_saved(self) -> float | None:
        return None if self.device_us_after is None else self.device_us_before - self.device_us_after


@dataclass(frozen=True, slots=True)
class Cures:
    """``rows`` are eager, + CUDA graph, + fusion, + both. ``blockers`` stop or endanger a capture; a step that
    waits for the host is cut into parts by a compiler as well."""

    rows: tuple[Row, ...]
    blockers: tuple[Blocker, ...]
    regions: tuple[Region, ...]
    fusion: Fusion
    fused: PricedGraph

    @property
    def eager(self) -> Row:
        return self.rows[0]

    @property
    def cuda_graph(self) -> Row:
        return self.rows[1]

    @property
    def fused_row(self) -> Row:
        return self.rows[2]

    @property
    def both(self) -> Row:
        return self.rows[3]


def cures(priced: PricedGraph, timeline: Timeline, eager: Verdict, *, epilogues: bool = False) -> Cures:
    """Price the cures of a priced and replayed run."""
    fusion = fuse(priced, epilogues=epilogues)
    fused = compiled(priced, fusion)
    fused_timeline = replay(fused)
    fused_verdict = verdict(fused, fused_timeline)
    wall = timeline.wall_us
    # Compiled code checks its guards whether or not its kernels are replayed from a graph.
    entry_us = sum(entries(fused.graph, fused.pricing.host).values())
    rows = (
        _row("eager", priced, eager, timeline.wall_us, wall),
        _graph_row("+ CUDA graph", priced, eager, wall),
        _row("+ fusion", fused, fused_verdict, fused_timeline.wall_us, wall),
        _graph_row("+ both", fused, fused_verdict, wall, entry_us),
    )
    works = [priced.costs.work(call) for call in range(len(priced.graph))]
    return Cures(rows, blockers(priced.graph, works), tuple(_regions(priced, fusion, fused)), fusion, fused)


def _row(name: str, priced: PricedGraph, bounds: Verdict, wall_us: float, eager_us: float) -> Row:
    costs = priced.costs
    known = ~np.isnan(costs.launches)
    return Row(
        name=name,
        launches=int(costs.launches[known].sum()),
        hbm_bytes=int((costs.traffic.read + costs.traffic.written)[known].sum()),
        peak_bytes=priced.memory.peak,
        host_us=sum(costs.host.total_us.tolist()),
        device_us=sum(np.nan_to_num(costs.device_us).tolist()),
        wall_us=wall_us,
        speed_up=eager_us / wall_us if wall_us else 1.0,
        bottleneck=bounds.bottleneck,
        complete=not np.isnan(costs.device_us).any(),
    )


def _graph_row(
    name: str, priced: PricedGraph, bounds: Verdict, eager_us: float, entry_us: float = 0.0
) -> Row:
    """The same launches from a graph: no host time but its own and what stands before it, no gap, no wait."""
    gpu = priced.pricing.gpu
    row = _row(name, priced, bounds, bounds.graph_us + entry_us, eager_us)
    replays_us = max(1, priced.graph.info.steps) * gpu.graph_replay_us
    overhead = entry_us + replays_us + gpu.graph_launch_us * row.launches
    causes: dict[Bottleneck, float] = {
        "memory": bounds.memory_us,
        "compute": bounds.compute_us,
        "launch": overhead,
    }
    largest = max(causes, key=lambda cause: causes[cause])
    return replace(row, host_us=entry_us + replays_us, bottleneck=largest if row.launches else None)


def _regions(priced: PricedGraph, fusion: Fusion, fused: PricedGraph) -> Iterator[Region]:
    """What the kernels of generated code stand for."""
    counted: set[int] = set()
    graph, costs = priced.graph, priced.costs
    launches = np.nan_to_num(costs.launches).astype(np.int64).tolist()
    device_us = np.nan_to_num(costs.device_us).tolist()
    lines = [str(source.line) if source.line is not None else "" for source in graph.sources.rows]
    for step, cost in zip(fusion.steps, fused.costs, strict=True):
        if not step.region or len(step.calls) < 2:
            continue
        # A library call stays one, though its bias may move into the region behind it.
        # Unless it is generated code with the region in it.
        generated = step.node is not None
        own = [
            call
            for call in step.calls
            if call not in counted and (generated or fusion.roles[call] != "extern")
        ]
        counted.update(own)
        if not own:
            continue
        here = dict.fromkeys(line for call in step.calls if (line := lines[graph.source_of(call)]))
        yield Region(
            calls=tuple(own),
            launches_before=sum(launches[call] for call in own),
            launches_after=cost.launches or 0,
            bytes_before=sum(costs.work(call).tensor_bytes for call in own),
            bytes_after=sum(access.nbytes for access in (*step.reads, *step.writes)),
            device_us_before=sum(device_us[call] for call in own),
            device_us_after=cost.device_us,
            lines=tuple(here),
        )
