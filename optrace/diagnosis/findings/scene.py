"""A run as the rules look at it: who made what, who uses it, where a call stands, what it would cost otherwise.

Everything is computed when first asked for, in one pass over the calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from optrace.cost.device import DeviceModel, device_time
from optrace.cost.host import HostTime, further_ops
from optrace.cost.host_profile import HostClass
from optrace.cost.l2 import Traffic
from optrace.cost.rules import work_of
from optrace.cost.work import Access, KernelKind, Work
from optrace.diagnosis.compare import folded
from optrace.diagnosis.run import Run
from optrace.graph import Frame, OpNode, TensorMeta
from optrace.graph.columns import Floats, Ints
from optrace.graph.opgraph import WRITES
from optrace.timeline import Task

_NODES_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call stands: the line that makes it, torch's own files apart, and its module, layers folded."""

    line: Frame | None
    module: str


@dataclass(frozen=True, slots=True)
class _Followed:
    """The storages of a run followed from call to call."""

    sources: list[tuple[int, ...]]
    users: list[list[int]]
    versions: list[tuple[int, ...]]


class Scene:
    """One run. Calls are numbers; a source of -1 is what stood before the run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.graph = run.priced.graph
        self.costs = run.priced.costs
        self.gpu = run.priced.pricing.gpu
        self.host = run.priced.pricing.host
        self._target = run.priced.pricing.target(self.graph.info)
        self._model = DeviceModel(self.gpu, self._target)
        self._nodes: dict[int, OpNode] = {}
        self._lines: dict[int, Frame | None] = {}
        self._paths: dict[int, str] = {-1: ""}

    def __len__(self) -> int:
        return len(self.graph)

    # -- a call ------------------------------------------------------------------------------------

    def node(self, call: int) -> OpNode:
        node = self._nodes.get(call)
        if node is None:
            if len(self._nodes) >= _NODES_KEPT:
                self._nodes.clear()  # a million of them would fill the memory
            node = self._nodes[call] = self.graph[call]
        return node

    def name(self, call: int) -> str:
        """``add`` of ``aten.add_.Tensor``: the op without namespace, overload and the mark of writing in place."""
        label = self.graph.facts(call).label
        return label if label.startswith("_") else label.rstrip("_")

    @cached_property
    def names(self) -> Sequence[str]:
        return [self.name(call) for call in range(len(self))]

    def calls_of(self, *names: str) -> list[int]:
        """Calls of ops with one of these names, in order."""
        return sorted(call for name in names for call in self._by_name.get(name, ()))

    @cached_property
    def _by_name(self) -> Mapping[str, list[int]]:
        found: dict[str, list[int]] = {}
        for call, name in enumerate(self.names):
            found.setdefault(name, []).append(call)
        return found

    def place(self, call: int) -> Place:
        row = self.graph.source_of(call)
        if row not in self._lines:
            frames = self.graph.source(call).frames
            own = (frame for frame in frames if not frame.file.startswith(("torch/", "torch\\")))
            self._lines[row] = next(own, None)
        return Place(self._lines[row], self.module(call))

    def module(self, call: int) -> str:
        """The call's module path with ``*`` for layer numbers."""
        row = self.graph.module_of(call)
        if row not in self._paths:
            self._paths[row] = folded(self.graph.module_calls[row].path)
        return self._paths[row]

    def arguments(self, call: int) -> object:
        """What a call was given beside its tensors; equal for equal arguments."""
        return self.graph.template_of(call)

    def work(self, call: int) -> Work:
        """As ``Costs.work``."""
        return self.costs.work(call)

    # Figures by call, zero where one is not known.

    @cached_property
    def launches(self) -> Sequence[int]:
        return _numbers(np.nan_to_num(self.costs.launches).astype(np.int64))

    @cached_property
    def hbm_bytes(self) -> Sequence[int]:
        moved = np.nan_to_num(self.costs.hbm_read + self.costs.hbm_written)
        return _numbers(moved.astype(np.int64))

    @cached_property
    def busy_us(self) -> Sequence[float]:
        """Device time."""
        return _numbers(np.nan_to_num(self.costs.device_us))

    @cached_property
    def host_us(self) -> Sequence[float]:
        return _numbers(self.costs.host.total_us)

    @cached_property
    def waits(self) -> Sequence[int]:
        """The calls that make the host wait, in order."""
        return _numbers(np.flatnonzero(self.costs.host_wait))

    @cached_property
    def wall_us(self) -> Sequence[float]:
        """Shares of the wall clock."""
        return _numbers(self.run.timeline.spans.wall_us)

    def is_pointwise(self, call: int) -> bool:
        """An elementwise kernel: each element of the result from those at its place in the operands."""
        return (
            self.work(call).kind == "elementwise"
            and self.launches[call] == 1
            and "pointwise" in self.graph.facts(call).tags
        )

    @cached_property
    def trains(self) -> bool:
        """The run has a backward pass."""
        return any(self.graph.phase(call) == "backward" for call in range(len(self)))

    # -- who made what -----------------------------------------------------------------------------

    @property
    def sources(self) -> Sequence[tuple[int, ...]]:
        """For each call the calls that last wrote its operands, views looked through: a number an operand."""
        return self._followed.sources

    @property
    def users(self) -> Sequence[Sequence[int]]:
        """For each call those that use what it wrote, views left out, each once."""
        return self._followed.users

    @property
    def versions(self) -> Sequence[tuple[int, ...]]:
        """For each call how often the storage of each operand had been written before."""
        return self._followed.versions

    @cached_property
    def _followed(self) -> _Followed:
        graph = self.graph
        writer: dict[int, int] = {}
        version: dict[int, int] = {}
        found = _Followed([], [[] for _ in range(len(self))], [])
        for call in range(len(self)):
            storages = [graph.tensor_storage(tensor) for tensor in graph.operands(call)]
            sources = tuple([writer.get(storage, -1) for storage in storages])
            found.sources.append(sources)
            found.versions.append(tuple([version.get(storage, 0) for storage in storages]))
            if graph.is_view(call):
                continue
            for source in sources:
                if source >= 0 and call not in found.users[source][-1:]:
                    found.users[source].append(call)
            for storage, flag in zip(storages, graph.operand_flags(call), strict=True):
                if flag & WRITES and storage >= 0:
                    writer[storage] = call
                    version[storage] = version.get(storage, 0) + 1
            given = set(storages)
            for tensor in graph.outputs(call):
                storage = graph.tensor_storage(tensor)
                if storage >= 0 and storage not in given:
                    writer[storage] = call
        return found

    def views_for(self, calls: Iterable[int]) -> set[int]:
        """Views that were taken only to hand an operand to one of the calls."""
        found: set[int] = set()
        waiting = list(calls)
        while waiting:
            for tensor in self.graph.operands(waiting.pop()):
                view = self._view_that_made.get(tensor)
                if view is not None and view not in found and self._uses[tensor] == 1:
                    found.add(view)
                    waiting.append(view)
        return found

    @cached_property
    def _view_that_made(self) -> Mapping[int, int]:
        """Tensors that a view gave, by number."""
        graph = self.graph
        views = (call for call in range(len(self)) if graph.is_view(call))
        return {tensor: call for call in views for tensor in graph.outputs(call)}

    @cached_property
    def _uses(self) -> Mapping[int, int]:
        """How many operands each tensor is."""
        return Counter(tensor for call in range(len(self)) for tensor in self.graph.operands(call))

    def source(self, call: int, operand: int = 0) -> int:
        """The call that made an operand, or -1."""
        sources = self.sources[call]
        return sources[operand] if operand < len(sources) else -1

    def storage_of(self, call: int, operand: int = 0) -> int:
        return self.graph.tensor_storage(self.graph.operands(call)[operand])

    # -- what it would cost otherwise --------------------------------------------------------------

    def task(self, call: int) -> Task:
        """A call as the replay saw it."""
        return Task(
            host=self.costs.host[call],
            launches=self.launches[call],
            device_us=self.busy_us[call],
            stream=self.graph.stream(call),
            host_wait=self.work(call).host_wait,
        )

    def left_out(self, calls: Iterable[int]) -> dict[int, Task | None]:
        """What stays of calls that are left out. The Python before a call goes with it: all of it behind another that
        is left out, else as much as stands between two calls of one module. What is more stays, such as the way into a
        module or what begins a step, and what a first call pays that another then pays for it."""
        gone = set(calls)
        ops = Counter(self.graph.op_of(call) for call in gone)
        found: dict[int, Task | None] = {}
        for call in sorted(gone):
            behind = call - 1 in gone and not self._begins(call)
            python_us = 0.0 if behind else self._python_left_us(call)
            op = self.graph.op_of(call)
            first_us = float(self.costs.host.first_us[call])
            _, _, of_pass_us = self.host.longer_at_first(self.graph.phase(call), trains=self.trains)
            if first_us < of_pass_us and ops[op] == self._calls_of_op[op]:
                first_us = 0.0  # no other call of the op is left
            stays = HostTime(python_us=python_us, dispatch_us=first_us)
            found[call] = None if behind and not first_us else Task(stays, 0, 0.0, self.graph.stream(call))
        return found

    @cached_property
    def _calls_of_op(self) -> Counter[int]:
        return Counter(self.graph.op_of(call) for call in range(len(self)))

    def _begins(self, call: int) -> bool:
        """A step, or an optimizer's."""
        return call in self._step_starts or self.graph.phase(call) != self.graph.phase(call - 1)

    @cached_property
    def _step_starts(self) -> frozenset[int]:
        return frozenset(self.graph.step_starts())

    def _python_left_us(self, call: int) -> float:
        between = self.host.between
        own_us = self.host.python_us if between is None else between.call_us
        return max(self.costs.host[call].python_us - own_us, 0.0)

    def retimed(self, call: int, device_us: float, launches: int | None = None) -> Task:
        """A call with other device time, and other launches where that is given."""
        task = self.task(call)
        if launches is None or launches == task.launches:
            return replace(task, device_us=device_us)
        packet, work = self.graph.facts(call).packet, self.work(call)
        other = replace(work, kernels=launches, memcpys=0, memsets=0)
        more = further_ops(packet, other) - further_ops(packet, work)
        host = replace(
            task.host,
            dispatch_us=task.host.dispatch_us + more * self.host.composed_us,
            launch_us=launches * self.host.launch_us,
        )
        return replace(task, host=host, launches=launches, device_us=device_us)

    def one_call(
        self,
        call: int,
        device_us: float,
        launches: int = 1,
        kind: HostClass = "elementwise",
        tensors: int = 0,
    ) -> Task:
        """Another op in a call's place: what the host does for one of this class, with ``tensors`` in lists."""
        own = self.costs.host[call]
        dispatch = self.host.dispatch_of(kind) + self.host.list_item_us * tensors
        dispatch += self.host.longer_in_networks(kind, self.graph.phase(call), trains=self.trains)
        dispatch += float(self.costs.host.first_us[call])
        python_us = own.python_us
        if kind == "attention" and self.host.between is not None:
            python_us += self.host.between.attention_us
        host = HostTime(python_us, own.autograd_us, dispatch, launches * self.host.launch_us)
        return Task(host, launches, device_us, self.graph.stream(call))

    def streaming_us(self, nbytes: float) -> float:
        """Device time of one vectorized pointwise kernel that moves so many bytes."""
        return self.device_us(pointwise_work(int(nbytes)), int(nbytes))

    def price(self, node: OpNode, crossing: float = 1.0) -> tuple[float, int]:
        """Device time and launches of a call that was not made, with this part of its bytes through HBM."""
        work = work_of(node, self._target)
        read, written = (
            int(crossing * sum(access.nbytes for access in side)) for side in (work.reads, work.writes)
        )
        time = self._model.time(node, work, Traffic(read, written))
        return (0.0 if time is None else time.us), work.launches or 0

    def crossing(self, call: int) -> float:
        """The part of a call's bytes that crosses HBM."""
        touched = self.work(call).tensor_bytes
        return min(1.0, self.hbm_bytes[call] / touched) if touched else 0.0

    def device_us(self, work: Work, hbm_bytes: int) -> float:
        """Device time of other work that moves ``hbm_bytes`` through HBM."""
        time = device_time(work, hbm_bytes, self.gpu)
        return 0.0 if time is None else time.us


def _numbers(column: Floats | Ints) -> list[Any]:
    """Python's own numbers, which are quicker one by one."""
    numbers: list[Any] = column.tolist()
    return numbers


def pointwise_work(nbytes: int, kind: KernelKind = "elementwise") -> Work:
    """One kernel that passes over ``nbytes`` of contiguous bfloat16."""
    shape = (max(1, nbytes // 2),)
    tensor = TensorMeta(shape, (1,), "bfloat16", "cuda:0", -1, nbytes, 0, -1)
    return Work(kernels=1, reads=(Access(tensor, nbytes),), flops=shape[0], kind=kind, math_dtype="bfloat16")
