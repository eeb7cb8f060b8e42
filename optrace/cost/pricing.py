"""Every call's cost: counts first, then the times that a profile derives from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from optrace.cost.device import DeviceModel, DeviceTime
from optrace.cost.host import HostTime, host_time, python_scale
from optrace.cost.l2 import L2Cache, Traffic
from optrace.cost.memory import MemoryUse, memory_use
from optrace.cost.profiles import Pricing
from optrace.cost.rules import work_of
from optrace.cost.work import CostSource, Work
from optrace.cost.workspaces import library_workspaces
from optrace.graph import OpGraph


@dataclass(frozen=True, slots=True)
class OpCost:
    """One call's price. Where the launches are not known, ``device`` is None and so is what crosses HBM:
    ``traffic`` is then what the call's tensors would do to the cache."""

    work: Work
    traffic: Traffic
    host: HostTime
    device: DeviceTime | None

    @property
    def launches(self) -> int | None:
        return self.work.launches

    @property
    def hbm_read(self) -> int | None:
        return None if self.launches is None else self.traffic.read

    @property
    def hbm_written(self) -> int | None:
        return None if self.launches is None else self.traffic.written

    @property
    def hbm_bytes(self) -> int | None:
        return None if self.launches is None else self.traffic.read + self.traffic.written

    @property
    def intensity(self) -> float | None:
        """FLOPs a byte that crosses HBM; None where either is not known or no byte crosses."""
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
    """A graph with a price on every call, in call order, and its memory. ``tail_us``: host time after the last."""

    graph: OpGraph
    pricing: Pricing
    costs: tuple[OpCost, ...]
    memory: MemoryUse
    tail_us: float = 0.0


def price(graph: OpGraph, pricing: Pricing) -> PricedGraph:
    """Price every call of ``graph``."""
    target = pricing.target(graph.info)
    works = [work_of(node, target) for node in graph]
    memory = memory_use(graph, [work.allocated for work in works], library_workspaces(graph, target))
    traffics = warm_traffic(graph, works, memory, pricing.gpu.l2_bytes)
    device = DeviceModel(pricing.gpu, target)
    scale = python_scale(pricing.host, graph.info.python_loop_us)
    costs = []
    for node, work, traffic in zip(graph, works, traffics, strict=True):
        costs.append(
            OpCost(
                work=work,
                traffic=traffic,
                host=host_time(node, work, pricing.host, python_scale=scale),
                device=device.time(node, work, traffic),
            )
        )
    return PricedGraph(graph, pricing, tuple(costs), memory, tail_us=(graph.info.tail_us or 0.0) * scale)


#: Where cuBLAS's own workspace lies: behind everything that the allocator hands out.
_WORKSPACE = 1 << 60


def warm_traffic(graph: OpGraph, works: Sequence[Work], memory: MemoryUse, l2_bytes: int) -> list[Traffic]:
    """HBM traffic of each call in a step that was preceded by its like: what the step before left in L2 is there."""
    cache = L2Cache(l2_bytes)
    traffics: list[Traffic] = []
    number = -1  # temporaries are numbered apart from storages
    for _ in ("cold", "warm"):
        traffics.clear()
        for storage in memory.standing:
            if not cache.holds(storage):
                cache.place(storage, memory.addresses[storage], graph.storages[storage].nbytes)
        for call, work in enumerate(works):
            for storage in memory.created.get(call, ()):
                cache.place(storage, memory.addresses[storage], graph.storages[storage].nbytes)
            temporaries = []
            for address, nbytes in _temporaries(work, memory.inside.get(call, ())):
                number -= 1
                cache.place(number, address, nbytes)
                temporaries.append(number)
            traffics.append(cache.run(work, temporaries, call))
    return traffics


def _temporaries(work: Work, allocated: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Address and bytes of each temporary: from the allocator, or one behind the other in the library's workspace."""
    own = () if work.kind == "matmul" else allocated
    free = _WORKSPACE
    for place, nbytes in enumerate(work.scratch):
        size = max(1, nbytes)
        yield (own[place] if place < len(own) else free), size
        free += size
