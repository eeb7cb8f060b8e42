"""``Report``: a graph with its costs, timeline and diagnosis; what renderers and the library hand out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module

import numpy as np

from optrace.cost.device import peak_flops
from optrace.cost.peak import Peak, peak_of
from optrace.cost.pricing import Costs, PricedGraph, price
from optrace.cost.profiles import Pricing
from optrace.cost.work import Work
from optrace.diagnosis import Bound, Cures, Lesson, Verdict, bounds_of, cures, lesson, verdict
from optrace.diagnosis.findings import Finding, find
from optrace.graph import OpGraph
from optrace.graph.columns import Floats
from optrace.timeline import Timeline, replay


@dataclass(frozen=True, slots=True)
class Total:
    """A sum with what it leaves out: ``missing`` maps an op to the number of its calls without the figure."""

    value: float
    missing: dict[str, int]

    @property
    def complete(self) -> bool:
        return not self.missing


@dataclass(frozen=True)
class Report:
    """A priced, replayed and diagnosed run. Sequences are in call order.

    ``epilogues``: the fused program's products are generated code that takes in its pointwise neighbours.
    """

    priced: PricedGraph
    timeline: Timeline
    bounds: tuple[Bound, ...]
    verdict: Verdict
    lesson: Lesson
    epilogues: bool = False

    @property
    def graph(self) -> OpGraph:
        return self.priced.graph

    @property
    def pricing(self) -> Pricing:
        return self.priced.pricing

    @property
    def costs(self) -> Costs:
        return self.priced.costs

    @cached_property
    def totals(self) -> dict[str, Total]:
        """Sums over all calls by name, each with what it leaves out (see ``docs/format.md``)."""
        return {name: self._total(figure(self.costs)) for name, figure in _FIGURES.items()}

    def _total(self, figure: Floats) -> Total:
        missing: dict[str, int] = {}
        for call in np.flatnonzero(np.isnan(figure)).tolist():
            op = self.graph.facts(call).name
            missing[op] = missing.get(op, 0) + 1
        return Total(float(np.nansum(figure)), missing)

    @cached_property
    def cures(self) -> Cures:
        """What a CUDA graph, fusion and both would make of the run."""
        return cures(self.priced, self.timeline, self.verdict, epilogues=self.epilogues)

    @property
    def complete(self) -> bool:
        """Every call was recorded and every call has a launch count and traffic."""
        return self.graph.info.complete and self.totals["launches"].complete

    @cached_property
    def peak(self) -> Peak:
        """What is alive when most device memory is allocated."""
        return peak_of(self.graph, self.priced.memory)

    @property
    def fits(self) -> bool | None:
        """Whether the run fits into the GPU's memory. None: what is allocated would, what the allocator reserves
        for it would not, and it depends on which unused segments it can give back."""
        memory, room = self.priced.memory, self.pricing.gpu.memory_bytes
        if memory.peak > room:
            return False
        return True if memory.reserved <= room else None

    @property
    def gpu_busy_share(self) -> float | None:
        """Device time over wall time; None for a run that takes none."""
        return self.exposed_device_us / self.timeline.wall_us if self.timeline.wall_us else None

    @property
    def exposed_device_us(self) -> float:
        """Wall time during which some kernel runs."""
        return self.verdict.memory_us + self.verdict.compute_us

    @property
    def flops_only_us(self) -> float:
        """The estimate people start from: matmul FLOPs of the GPU at the dtype's peak, nothing else."""
        gpu = self.pricing.gpu
        us = []
        for work in self.costs.works.distinct:
            on_gpu = work.matmul_flops and work.launches != 0
            peak = peak_flops(work, gpu) if on_gpu else None
            us.append((work.matmul_flops or 0) / peak * 1e6 if peak else 0.0)
        return float(self.costs.of_work(us).sum())

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What is worth changing, by the wall time that it is about."""
        return find(self)

    @cached_property
    def findings_by_call(self) -> dict[int, tuple[Finding, ...]]:
        """The findings that each call is part of."""
        found: dict[int, tuple[Finding, ...]] = {}
        for finding in self.findings:
            for call in finding.calls:
                found[call] = (*found.get(call, ()), finding)
        return found

    @property
    def hbm_utilization(self) -> float | None:
        """Memory bandwidth that the run reaches, as part of the datasheet's; None for a run that takes no time."""
        if not self.timeline.wall_us:
            return None
        rate = self.totals["hbm_bytes"].value / self.timeline.wall_us
        return rate / (self.pricing.gpu.bandwidth_tb_s * 1e6)

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization: the FLOPs-only time over the wall time."""
        return self.flops_only_us / self.timeline.wall_us if self.timeline.wall_us else None

    def _repr_mimebundle_(self, **_wishes: object) -> dict[str, str]:
        """What a notebook keeps: the page, and a picture for where a notebook is only looked at."""
        bundle: dict[str, str] = import_module("optrace.rendering.page.notebook").report_bundle(self)
        return bundle

    def _repr_html_(self) -> str:
        """What a notebook shows. By name, since rendering knows reports and not the other way round."""
        return str(import_module("optrace.rendering.page.notebook").report_html(self))


def _of_work(figure: Callable[[Work], float | None]) -> Callable[[Costs], Floats]:
    return lambda costs: costs.of_work(map(figure, costs.works.distinct))


_FIGURES: dict[str, Callable[[Costs], Floats]] = {
    "launches": lambda costs: costs.launches,
    "kernels": _of_work(lambda work: work.kernels),
    "memcpys": _of_work(lambda work: work.memcpys),
    "memsets": _of_work(lambda work: work.memsets),
    "tensor_bytes": _of_work(lambda work: work.tensor_bytes),
    "hbm_bytes": lambda costs: costs.hbm_read + costs.hbm_written,
    "hbm_read": lambda costs: costs.hbm_read,
    "hbm_written": lambda costs: costs.hbm_written,
    "flops": _of_work(lambda work: work.flops),
    "matmul_flops": _of_work(lambda work: work.matmul_flops),
    "host_us": lambda costs: costs.host.total_us,
    "device_us": lambda costs: costs.device_us,
}


def report(graph: OpGraph, pricing: Pricing) -> Report:
    """Price a graph, replay it through the queue and say what bounds it."""
    priced = price(graph, pricing)
    timeline = replay(priced)
    bounds = bounds_of(priced.costs, timeline.spans)
    return Report(priced, timeline, bounds, verdict(priced, timeline), lesson(priced))
