"""Reports made by hand: every figure stands in the test, and no rule or tracer takes part."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from optrace.cost.device import DeviceTime, Roof
from optrace.cost.host import HostTime, host_rows
from optrace.cost.l2 import Traffic
from optrace.cost.memory import memory_use
from optrace.cost.pricing import Costs, DeviceColumns, OpCost, PricedGraph
from optrace.cost.profiles import Pricing, find_gpu, host_profiles
from optrace.cost.traffic import TrafficColumns
from optrace.cost.work import Access, CostSource, Work
from optrace.cost.works import Works
from optrace.diagnosis import bounds_of, lesson, verdict
from optrace.diagnosis.cuda_graph import blockers
from optrace.diagnosis.cures import Cures, Region, Row
from optrace.diagnosis.fusion import Fusion
from optrace.graph import Frame, ModuleCall, OpFacts, OpGraph, Phase, Source, Storage, TraceInfo
from optrace.graph.opgraph import HOLE, READS, WRITES, Layout
from optrace.report import Report
from optrace.timeline import Task, simulate

GPU = msgspec.structs.replace(
    find_gpu("h200"),
    name="Test GPU",
    bandwidth_tb_s=2.0,
    peak_tflops={"float32": 10.0, "bfloat16": 100.0, "float64": 5.0},
    graph_replay_us=10.0,
    graph_launch_us=1.0,
    source="made up",
    measured=False,
)
HOST = msgspec.structs.replace(
    host_profiles()["default"],
    name="test host",
    dispatch_us=4.0,
    launch_us=4.0,
    sync_us=5.0,
    source="made up",
    measured=False,
)


class HandGraph:
    """An ``OpGraph`` under construction, with the cost of each call."""

    def __init__(self, program: str = "by_hand.py", **info: object) -> None:
        self.graph = OpGraph(TraceInfo(program=program, mode="fake", torch="2.13.0", gpu="h200", **info))  # type: ignore[arg-type]
        self.costs: list[OpCost] = []

    def tensor(
        self,
        shape: tuple[int, ...],
        *,
        dtype: str = "float32",
        name: str = "",
        kind: str = "",
        like: int | None = None,
        stride: tuple[int, ...] | None = None,
    ) -> int:
        """A new tensor in a storage of its own, or in that of ``like``."""
        row_major = tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
        layout = Layout(shape, stride or row_major, dtype, "cuda:0")
        if like is None:
            storage = self.graph.add_storage(Storage(4 * math.prod(shape), "cuda:0", kind, name))
        else:
            storage = self.graph.tensor_storage(like)
        return self.graph.add_tensor(self.graph.layouts.add(layout), storage, 0)

    def call(
        self,
        op: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        *,
        writes: Sequence[int] = (),
        line: int = 1,
        file: str = "/home/me/toy.py",
        function: str = "step",
        module: str = "",
        cls: str = "",
        module_call: int = 1,
        phase: Phase = "forward",
        view: bool = False,
        kernels: int | None = 1,
        memcpys: int = 0,
        device_us: float | None = 2.0,
        roof: Roof = "memory",
        read: int = 0,
        written: int = 0,
        flops: int | None = 0,
        matmul_flops: int = 0,
        host_wait: bool = False,
        source: CostSource = "rule",
        **kwargs: object,
    ) -> int:
        """Append a call; what is left out is a cheap kernel that moves nothing."""
        graph = self.graph
        touches = 0 if kernels == 0 and not memcpys else 1
        work = Work(
            kernels=kernels,
            memcpys=memcpys,
            reads=tuple(self._access(tensor) for tensor in inputs) * touches,
            writes=tuple(self._access(tensor) for tensor in (*outputs, *writes)) * touches,
            flops=flops,
            matmul_flops=matmul_flops,
            kind="matmul" if matmul_flops else "elementwise",
            host_wait=host_wait,
            source=source,
        )
        device = None if device_us is None else DeviceTime(device_us, roof, device_us / 2)
        host = HostTime(3.0, 0.0, 4.0, 4.0 * (work.launches or 0))
        self.costs.append(OpCost(work, Traffic(read, written), host, device))
        result = tuple(HOLE for _ in outputs)
        return graph.add_call(
            graph.add_op_facts(OpFacts(op, is_view=view)),
            graph.add_template(
                tuple(HOLE for _ in inputs), tuple(kwargs.items()), result[0] if len(result) == 1 else result
            ),
            list(inputs),
            [READS | WRITES if tensor in writes else READS for tensor in inputs],
            list(outputs),
            source=graph.sources.add(Source((Frame(file, line, function, True),))),
            module=graph.module_calls.add(ModuleCall(module, cls, module_call)) if module else -1,
            phase=phase,
        )

    def _access(self, tensor: int) -> Access:
        meta = self.graph.tensor(tensor)
        return Access(meta, meta.nbytes)

    def chain(self, length: int, op: str = "aten.relu.default", **how: object) -> None:
        """``length`` calls, each of which uses what the one before gave."""
        last = self.tensor((4,))
        for _ in range(length):
            out = self.tensor((4,))
            self.call(op, [last], [out], **how)  # type: ignore[arg-type]
            last = out

    def report(self) -> Report:
        memory = memory_use(self.graph.columns(), [()] * len(self.graph))
        costs = _columns(self.graph, self.costs)
        priced = PricedGraph(self.graph, Pricing(GPU, HOST), costs, memory)
        tasks = [
            Task(cost.host, cost.launches or 0, cost.device_us or 0.0, host_wait=cost.work.host_wait)
            for cost in self.costs
        ]
        timeline = simulate(tasks, sync_us=HOST.sync_us)
        bounds = bounds_of(costs, timeline.spans)
        made = Report(priced, timeline, bounds, verdict(priced, timeline), lesson(priced))
        # Where a report keeps its cures once they were asked for: by hand too, whatever the device model says.
        vars(made)["cures"] = _cures(priced, timeline.wall_us)
        return made


def _columns(graph: OpGraph, costs: Sequence[OpCost]) -> Costs:
    traffic = [(t.read, t.written, t.copy_read, t.copy_written) for t in (cost.traffic for cost in costs)]
    return Costs(
        graph,
        Works.one_a_call([cost.work for cost in costs]),
        TrafficColumns(*np.array(traffic, dtype=np.int64).reshape(-1, 4).T),
        host_rows(cost.host for cost in costs),
        DeviceColumns(tuple(cost.device for cost in costs), np.arange(len(costs))),
    )


def _cures(priced: PricedGraph, wall_us: float) -> Cures:
    """Three quarters of the launches and half the bytes in two thirds of the time, in a graph a half of that."""
    launches = sum(cost.launches or 0 for cost in priced.costs)
    complete = all(cost.launches is not None for cost in priced.costs)
    rows = tuple(
        Row(name, count, nbytes, 1 << 20, host, 12.0, wall_us * part, 1 / part, bound, complete)
        for name, count, nbytes, host, part, bound in (
            ("eager", launches, 4096, 80.0, 1.0, "launch"),
            ("+ CUDA graph", launches, 4096, 10.0, 1 / 2, "memory"),
            ("+ fusion", launches * 3 // 4, 2048, 60.0, 2 / 3, "launch"),
            ("+ both", launches * 3 // 4, 2048, 10.0, 1 / 3, "memory"),
        )
    )
    fused = [call for call in range(len(priced.costs)) if priced.graph.facts(call).label in ("gelu", "add")]
    regions = (Region(tuple(fused), 2, 1, 12_288, 6144, 4.0, 2.5, ("toy.py:5", "toy.py:6")),) if fused else ()
    found = blockers(priced.graph, [cost.work for cost in priced.costs])
    return Cures(rows, found, regions, Fusion((), ()), priced, {})
