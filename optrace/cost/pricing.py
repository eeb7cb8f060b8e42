"""Every call's cost: counts first, then the times that a profile derives from them."""

from __future__ import annotations

from dataclasses import dataclass

from optrace.cost.device import DeviceTime, device_time
from optrace.cost.host import HostTime, host_time
from optrace.cost.l2 import L2Cache, Traffic
from optrace.cost.memory import MemoryUse, memory_use
from optrace.cost.profiles import Pricing
from optrace.cost.rules import work_of
from optrace.cost.work import CostSource, Work
from optrace.graph import OpGraph


@dataclass(frozen=True, slots=True)
class OpCost:
    """One call's price. ``device`` is None where the launches are not known."""

    work: Work
    traffic: Traffic
    host: HostTime
    device: DeviceTime | None

    @property
    def launches(self) -> int | None:
        return self.work.launches

    @property
    def hbm_bytes(self) -> int:
        return self.traffic.read + self.traffic.written

    @property
    def intensity(self) -> float | None:
        """FLOPs a byte that crosses HBM; None where the FLOPs are not known or no byte crosses."""
        if self.work.flops is None or not self.hbm_bytes:
            return None
        return self.work.flops / self.hbm_bytes

    @property
    def device_us(self) -> float | None:
        return None if self.device is None else self.device.us

    @property
    def source(self) -> CostSource:
        return self.work.source


@dataclass(frozen=True, slots=True)
class PricedGraph:
    """A graph with a price on every call, in call order, and its memory."""

    graph: OpGraph
    pricing: Pricing
    costs: tuple[OpCost, ...]
    memory: MemoryUse


def price(graph: OpGraph, pricing: Pricing) -> PricedGraph:
    """Price every call of ``graph``. Calls of one signature are counted once."""
    target = pricing.target(graph.info.torch)
    memory = memory_use(graph)
    cache = L2Cache(pricing.gpu.l2_bytes)
    costs = []
    for node in graph:
        work = work_of(node, target)
        traffic = cache.run(work, memory.addresses)
        costs.append(
            OpCost(
                work=work,
                traffic=traffic,
                host=host_time(node, work, pricing.host),
                device=device_time(work, traffic.read + traffic.written, pricing.gpu),
            )
        )
    return PricedGraph(graph, pricing, tuple(costs), memory)
