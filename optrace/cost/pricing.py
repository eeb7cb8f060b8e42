"""Every call's cost: counts first, then the times that a profile derives from them.

Calls that are alike share their counts; what differs from call to call is kept in columns. The ``OpCost`` of a call is
made when somebody looks at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from optrace.cost.device import DeviceModel, DeviceTime
from optrace.cost.host import HostColumns, HostTime, host_columns, python_scale
from optrace.cost.l2 import Traffic
from optrace.cost.memory import MemoryUse, memory_use
from optrace.cost.profiles import GpuProfile, Pricing
from optrace.cost.repeats import repeats
from optrace.cost.signatures import mixed
from optrace.cost.traffic import TrafficColumns, footprints, warm_traffic
from optrace.cost.work import CostSource, Work
from optrace.cost.works import Works
from optrace.cost.workspaces import library_workspaces
from optrace.graph import Columns, OpGraph
from optrace.graph.columns import Bools, Floats, Ints


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
class DeviceColumns:
    """``DeviceTime`` by call: ``of[call]`` is a row of ``distinct``."""

    distinct: tuple[DeviceTime | None, ...]
    of: Ints


class Costs(Sequence[OpCost]):
    """The calls' prices in call order, and the figures of all calls as columns, NaN where one is not known."""

    def __init__(
        self,
        graph: OpGraph,
        works: Works,
        traffic: TrafficColumns,
        host: HostColumns,
        device: DeviceColumns,
    ) -> None:
        self._graph = graph
        self._made: dict[int, OpCost] = {}
        self.works = works
        self.traffic = traffic
        self.host = host
        self.device = device

    def __len__(self) -> int:
        return len(self.works.of)

    @overload
    def __getitem__(self, call: int) -> OpCost: ...
    @overload
    def __getitem__(self, call: slice) -> Sequence[OpCost]: ...
    def __getitem__(self, call: int | slice) -> OpCost | Sequence[OpCost]:
        if isinstance(call, slice):
            return [self[number] for number in range(*call.indices(len(self)))]
        number = call + len(self) if call < 0 else call
        known = self._made.get(number)
        if known is None:
            if not 0 <= number < len(self):
                raise IndexError(call)
            known = self._made[number] = OpCost(
                self.works.of_call(number, self._graph),
                self.traffic[number],
                self.host[number],
                self.device.distinct[self.device.of[number]],
            )
        return known

    def work(self, call: int) -> Work:
        """What a call does, for its numbers: on the tensors of the first call that does the same."""
        return self.works.distinct[self._work_of[call]]

    @cached_property
    def _work_of(self) -> list[int]:
        numbers: list[int] = self.works.of.tolist()
        return numbers

    def of_work(self, figures: Iterable[float | None]) -> Floats:
        """A figure of distinct work, by call."""
        values = [np.nan if figure is None else figure for figure in figures]
        by_call: Floats = np.array(values, dtype=np.float64)[self.works.of]
        return by_call

    @cached_property
    def launches(self) -> Floats:
        return self.of_work(work.launches for work in self.works.distinct)

    @cached_property
    def hbm_read(self) -> Floats:
        return np.where(np.isnan(self.launches), np.nan, self.traffic.read)

    @cached_property
    def hbm_written(self) -> Floats:
        return np.where(np.isnan(self.launches), np.nan, self.traffic.written)

    @cached_property
    def host_wait(self) -> Bools:
        return self.of_work(work.host_wait for work in self.works.distinct) > 0

    @cached_property
    def device_us(self) -> Floats:
        times = [np.nan if time is None else time.us for time in self.device.distinct]
        by_call: Floats = np.array(times, dtype=np.float64)[self.device.of]
        return by_call

    @cached_property
    def bound_by_compute(self) -> Bools:
        """The device time comes from the arithmetic side of the roofline."""
        sides = [time is not None and time.roof == "compute" for time in self.device.distinct]
        by_call: Bools = np.array(sides, dtype=np.bool_)[self.device.of]
        return by_call


@dataclass(frozen=True, slots=True)
class PricedGraph:
    """A graph with a price on every call, in call order, and its memory. ``tail_us``: host time after the last."""

    graph: OpGraph
    pricing: Pricing
    costs: Costs
    memory: MemoryUse
    tail_us: float = 0.0


def price(graph: OpGraph, pricing: Pricing) -> PricedGraph:
    """Price every call of ``graph``."""
    target = pricing.target(graph.info)
    columns = graph.columns()
    works = Works.of_graph(graph, columns, target)
    traffic, memory = moved(columns, works, pricing.gpu, library_workspaces(graph, columns, target))
    device = device_columns(graph, works, traffic, DeviceModel(pricing.gpu, target))
    scale = python_scale(pricing.host, graph.info.python_loop_us)
    host = host_columns(graph, columns, works, pricing.host, python_scale=scale)
    costs = Costs(graph, works, traffic, host, device)
    return PricedGraph(graph, pricing, costs, memory, tail_us=(graph.info.tail_us or 0.0) * scale)


def moved(
    columns: Columns, works: Works, gpu: GpuProfile, library: Sequence[int]
) -> tuple[TrafficColumns, MemoryUse]:
    """What crosses HBM in each call, and where everything lies; ``library`` is what libraries keep."""
    prints = footprints(columns, works, gpu.l2_bytes)
    allocated = [work.allocated for work in works.distinct]
    temporaries = [allocated[number] for number in works.of.tolist()]
    memory = memory_use(columns, temporaries, library, repeats(columns, prints.kinds[works.of]))
    return warm_traffic(columns, works, prints, memory, gpu.l2_bytes), memory


def device_columns(
    graph: OpGraph, works: Works, traffic: TrafficColumns, model: DeviceModel
) -> DeviceColumns:
    """Device time of each call: once for all that do the same work with the same traffic."""
    moves = mixed(works.of, traffic.read + traffic.written)
    _, first, of = np.unique(moves, return_index=True, return_inverse=True)
    nodes = {number: graph[int(works.first[number])] for number in np.unique(works.of).tolist()}
    distinct = tuple(
        model.time(nodes[number], works.distinct[number], traffic[call])
        for call, number in zip(first.tolist(), works.of[first].tolist(), strict=True)
    )
    return DeviceColumns(distinct, of)
