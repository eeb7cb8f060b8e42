"""The two cures side by side: a CUDA graph for the launches, fusion for the bytes, and both.

Each row is a whole program priced by itself; what two cures save is never added up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from optrace.cost.pricing import PricedGraph
from optrace.diagnosis.compiled import compiled, entries
from optrace.diagnosis.cuda_graph import Blocker, Part, blockers, parts_us
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
    waits for the host is cut into parts by a compiler as well. ``entries``: what the host takes before the steps of
    ``fused`` with which a compiled function begins, by step."""

    rows: tuple[Row, ...]
    blockers: tuple[Blocker, ...]
    regions: tuple[Region, ...]
    fusion: Fusion
    fused: PricedGraph
    entries: Mapping[int, float]

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
    before = entries(priced.graph, fusion.steps, priced.pricing.host)
    fused = compiled(priced, fusion, before)
    fused_timeline = replay(fused)
    fused_verdict = verdict(fused, fused_timeline)
    wall = timeline.wall_us
    gpu, steps = priced.pricing.gpu, max(1, priced.graph.info.steps)
    # Compiled code checks its guards whether or not its kernels are replayed from a graph.
    parts = list(_parts(fused, fused_timeline, before))
    both_us = parts_us(parts, gpu, steps, priced.pricing.host.sync_us)
    issue_us = sum(part.before_us for part in parts) + len(parts) * steps * gpu.graph_replay_us
    rows = (
        _row("eager", priced, eager, timeline.wall_us, wall),
        _graph_row("+ CUDA graph", priced, eager, eager.graph_us, steps * gpu.graph_replay_us, wall),
        _row("+ fusion", fused, fused_verdict, fused_timeline.wall_us, wall),
        _graph_row("+ both", fused, fused_verdict, both_us, issue_us, wall),
    )
    works = [priced.costs.work(call) for call in range(len(priced.graph))]
    regions = tuple(_regions(priced, fusion, fused))
    return Cures(rows, blockers(priced.graph, works), regions, fusion, fused, before)


def _parts(fused: PricedGraph, timeline: Timeline, before: Mapping[int, float]) -> Iterator[Part]:
    """The graphs of a compiled program: each compiled function is one, cut where the host waits."""
    waits = np.flatnonzero(fused.costs.host_wait)
    calls = len(fused.graph)
    starts = sorted({0, *before, *(waits + 1).tolist()} - {calls})
    exposed, launches = timeline.spans.exposed_us, np.nan_to_num(fused.costs.launches)
    ends = set((waits + 1).tolist())
    for start, end in itertools.pairwise([*starts, calls]):
        yield Part(
            device_us=float(exposed[start:end].sum()),
            launches=int(launches[start:end].sum()),
            before_us=before.get(start, 0.0),
            waits=end in ends,
        )


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
    name: str, priced: PricedGraph, bounds: Verdict, wall_us: float, host_us: float, eager_us: float
) -> Row:
    """The same launches from graphs: what of the wall clock is not the device's is the launches'."""
    row = _row(name, priced, bounds, wall_us, eager_us)
    causes: dict[Bottleneck, float] = {
        "memory": bounds.memory_us,
        "compute": bounds.compute_us,
        "launch": wall_us - bounds.memory_us - bounds.compute_us,
    }
    largest = max(causes, key=lambda cause: causes[cause])
    return replace(row, host_us=host_us, bottleneck=largest if row.launches else None)


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
