"""``Report``: a graph with its costs, timeline and diagnosis; what renderers and the library hand out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module

from optrace.cost.device import peak_flops
from optrace.cost.peak import Peak, peak_of
from optrace.cost.pricing import OpCost, PricedGraph, price
from optrace.cost.profiles import Pricing
from optrace.diagnosis import Bound, Cures, Lesson, Verdict, bound_of, cures, lesson, verdict
from optrace.diagnosis.findings import Finding, find
from optrace.graph import OpGraph
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
    """A priced, replayed and diagnosed run. Sequences are in call order."""

    priced: PricedGraph
    timeline: Timeline
    bounds: tuple[Bound, ...]
    verdict: Verdict
    lesson: Lesson

    @property
    def graph(self) -> OpGraph:
        return self.priced.graph

    @property
    def pricing(self) -> Pricing:
        return self.priced.pricing

    @property
    def costs(self) -> tuple[OpCost, ...]:
        return self.priced.costs

    @cached_property
    def totals(self) -> dict[str, Total]:
        """Sums over all calls by name, each with what it leaves out (see ``docs/format.md``)."""
        return {name: self._total(figure) for name, figure in _FIGURES.items()}

    def _total(self, figure: Callable[[OpCost], float | None]) -> Total:
        value = 0.0
        missing: dict[str, int] = {}
        for call, cost in enumerate(self.costs):
            amount = figure(cost)
            if amount is None:
                op = self.graph.facts(call).name
                missing[op] = missing.get(op, 0) + 1
            else:
                value += amount
        return Total(value, missing)

    @cached_property
    def cures(self) -> Cures:
        """What a CUDA graph, fusion and both would make of the run."""
        return cures(self.priced, self.timeline, self.verdict)

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
        """The estimate people start from: matmul FLOPs at the dtype's peak, nothing else."""
        gpu = self.pricing.gpu
        total = 0.0
        for cost in self.costs:
            if cost.work.matmul_flops:
                peak = peak_flops(cost.work, gpu)
                total += cost.work.matmul_flops / peak * 1e6 if peak else 0.0
        return total

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

    def _repr_html_(self) -> str:
        """What a notebook shows. By name, since rendering knows reports and not the other way round."""
        return str(import_module("optrace.rendering.page.notebook").report_html(self))


_FIGURES: dict[str, Callable[[OpCost], float | None]] = {
    "launches": lambda cost: cost.launches,
    "kernels": lambda cost: cost.work.kernels,
    "memcpys": lambda cost: cost.work.memcpys,
    "memsets": lambda cost: cost.work.memsets,
    "tensor_bytes": lambda cost: cost.work.tensor_bytes,
    "hbm_bytes": lambda cost: None if cost.launches is None else cost.hbm_bytes,
    "hbm_read": lambda cost: None if cost.launches is None else cost.traffic.read,
    "hbm_written": lambda cost: None if cost.launches is None else cost.traffic.written,
    "flops": lambda cost: cost.work.flops,
    "matmul_flops": lambda cost: cost.work.matmul_flops,
    "host_us": lambda cost: cost.host.total_us,
    "device_us": lambda cost: cost.device_us,
}


def report(graph: OpGraph, pricing: Pricing) -> Report:
    """Price a graph, replay it through the queue and say what bounds it."""
    priced = price(graph, pricing)
    timeline = replay(priced)
    bounds = tuple(bound_of(cost, span) for cost, span in zip(priced.costs, timeline.spans, strict=True))
    return Report(priced, timeline, bounds, verdict(priced, timeline), lesson(priced))
