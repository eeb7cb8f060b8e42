"""The compiled program as a graph of its own, priced by the same model as the eager one.

A step of the fused program becomes a call that reads and writes the storages that are still there; those that
only carried a value inside a region are gone. So peak memory, what crosses HBM, and the wall clock come from the
allocator, the L2 and the queue that price eager runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from optrace.cost.device import DeviceModel, DeviceTime, device_time
from optrace.cost.host import HostTime, host_class, host_rows
from optrace.cost.host_profile import HostProfile
from optrace.cost.l2 import Traffic
from optrace.cost.memory import created
from optrace.cost.pricing import Costs, DeviceColumns, PricedGraph, moved
from optrace.cost.profiles import GpuProfile
from optrace.cost.signatures import signatures
from optrace.cost.work import Access
from optrace.cost.works import Works, on
from optrace.cost.workspaces import library_workspaces
from optrace.diagnosis.fusion import Fusion, Step
from optrace.graph import Columns, OpFacts, OpGraph, Source, Storage, TensorMeta
from optrace.graph.opgraph import HOLE, READS, WRITES, Layout

_REGION = OpFacts("compiled.region")
_LIBRARY = OpFacts("compiled.library")

#: torch's tags of calls whose result, or its size, is known once the device has run them.
_KNOWN_LATER = frozenset({"data_dependent_output", "dynamic_output_shape"})


def compiled(priced: PricedGraph, fusion: Fusion, before: Mapping[int, float]) -> PricedGraph:
    """The priced graph of the compiled program: call i is step i. ``before`` are its ``entries``."""
    eager, target, gpu = priced.graph.columns(), priced.pricing.target(priced.graph.info), priced.pricing.gpu
    born, _ = created(eager)
    made = set(np.flatnonzero(born >= 0).tolist())
    freed = set(eager.freed_storage[eager.freed_after >= 0].tolist())
    steps = _in_place(fusion.steps, made & freed)
    graph = _graph(priced.graph, steps, made, freed)
    columns = graph.columns()
    works = _alike(priced, steps, columns)
    traffic, memory = moved(columns, works, gpu, library_workspaces(priced.graph, eager, target))
    model = DeviceModel(gpu, target)
    host = host_rows(
        _host_time(step, priced.pricing.host, before.get(number, 0.0)) for number, step in enumerate(steps)
    )
    numbers: dict[tuple[int, Traffic], int] = {}
    times: list[DeviceTime | None] = []
    of: list[int] = []
    for number, (step, like) in enumerate(zip(steps, works.of.tolist(), strict=True)):
        moves = traffic[number]
        row = numbers.setdefault((like, moves), len(times))
        if row == len(times):
            times.append(_device_time(step, moves, gpu, model))
        of.append(row)
    device = DeviceColumns(tuple(times), np.array(of, dtype=np.int64))
    costs = Costs(graph, Works.one_a_call([step.work for step in steps]), traffic, host, device)
    return PricedGraph(graph, priced.pricing, costs, memory, tail_us=priced.tail_us)


def _alike(priced: PricedGraph, steps: Sequence[Step], columns: Columns) -> Works:
    """The steps' work, kept once for all that are alike: the same kernel, or the same call of a library, on tensors laid out
    in the same way."""
    numbers: dict[object, int] = {}
    of: list[int] = []
    first: list[int] = []
    called = priced.costs.works.of
    for number, (step, laid_out) in enumerate(zip(steps, signatures(columns).of.tolist(), strict=True)):
        work, node = step.work, step.node
        library = None if node is None else (int(called[node.id]), node.op)
        touched = tuple(
            [
                (access.nbytes, access.scattered, access.tensor.storage_bytes)
                for access in (*work.reads, *work.writes)
            ]
        )
        key = (laid_out, library, work.kernels, work.flops, work.kind, touched)
        like = numbers.setdefault(key, len(numbers))
        if like == len(first):
            first.append(number)
        of.append(like)
    return Works(
        tuple(steps[number].work for number in first), np.array(first, np.int64), np.array(of, np.int64)
    )


def _device_time(step: Step, traffic: Traffic, gpu: GpuProfile, model: DeviceModel) -> DeviceTime | None:
    """A library call as any call; generated code as one stream, or as its arithmetic where that takes longer."""
    if step.node is not None:
        return model.time(step.node, step.work, traffic)
    streamed = device_time(step.work, traffic.read + traffic.written, gpu)
    peak = gpu.peak_flops(step.work.math_dtype, matmul=False)
    if streamed is None or not peak:
        return streamed
    math_us = (step.work.flops or 0) / (peak * 1e-6)
    return streamed if math_us <= streamed.us else replace(streamed, us=math_us, roof="compute")


def entries(eager: OpGraph, steps: Sequence[Step], host: HostProfile) -> dict[int, float]:
    """What the host takes before steps of a compiled program: those with which a compiled function begins. The forward
    pass, its backward pass and the optimizer are functions of their own, and so is what follows a call whose result the
    program's Python has to know (``.item()``, a boolean index). Where none does, a function runs once a step of the run,
    and all of that stands before the first."""
    known_after = 0
    first: dict[tuple[str, int], int] = {}
    given: dict[tuple[str, int], set[int]] = {}
    made: dict[tuple[str, int], set[int]] = {}
    for number, step in enumerate(steps):
        phase = eager.phase(step.calls[0]) if step.calls else "other"
        sort = phase if phase in ("backward", "optimizer") else "forward"
        function: tuple[str, int] = (sort, known_after)
        if function not in first:
            first[function], given[function], made[function] = number, set(), set()
        reads = {access.tensor.storage for access in step.reads}
        given[function] |= reads - made[function]
        made[function].update(access.tensor.storage for access in step.writes)
        known_after += _python_has_to_know(step)
    us = {
        "forward": host.compiled_call_us,
        "backward": host.compiled_backward_us,
        "optimizer": host.compiled_optimizer_us,
    }
    times = 1 if known_after else max(1, eager.info.steps)
    found: dict[int, float] = {}
    for function, number in first.items():
        tensors = sum(storage >= 0 for storage in given[function])
        found[number] = times * (us[function[0]] + host.compiled_input_us * tensors)
    return found


def _python_has_to_know(step: Step) -> bool:
    """The program goes on from a value, or a size, that only the device knows: a graph break of Dynamo."""
    if step.node is None or not step.work.host_wait:
        return False
    return not _KNOWN_LATER.isdisjoint(step.node.facts.tags)


def _host_time(step: Step, host: HostProfile, entry: float) -> HostTime:
    """The wrapper's Python, and for library calls the dispatcher; no autograd and no views. ``entry`` is what stands
    before the step: guards and the way into the wrapper."""
    launches = step.work.launches or 0
    if step.region:
        return HostTime(python_us=entry + host.compiled_kernel_us, launch_us=launches * host.launch_us)
    dispatch = (
        host.dispatch_of(host_class(step.node.facts.packet, step.work)) if step.node else host.dispatch_us
    )
    return HostTime(entry + host.python_us, 0.0, dispatch, launches * host.launch_us)


def _graph(eager: OpGraph, steps: Sequence[Step], made: set[int], freed: set[int]) -> OpGraph:
    """Steps as calls. Storages keep their numbers; those that no step touches take no memory unless they stood
    before the run. ``made`` are those that some call makes, ``freed`` those that are gone after one."""
    graph = OpGraph(eager.info)
    touched: dict[int, int] = {}
    for number, step in enumerate(steps):
        for access in (*step.reads, *step.writes):
            if access.tensor.storage >= 0:
                touched[access.tensor.storage] = number
    for number, known in enumerate(eager.storages):
        there = number in touched or number not in made
        graph.add_storage(known if there else Storage(0, known.device, known.kind, known.name))
    source = graph.sources.add(Source())

    layouts: dict[tuple[object, ...], int] = {}

    def tensor(meta: TensorMeta) -> int:
        key = (meta.shape, meta.stride, meta.dtype, meta.device)
        layout = layouts.get(key)
        if layout is None:
            layout = layouts[key] = graph.layouts.add(
                Layout(meta.shape, meta.stride, meta.dtype, meta.device)
            )
        return graph.add_tensor(layout, meta.storage if meta.storage >= 0 else -1, meta.offset)

    for storage in eager.freed_after(-1):
        graph.add_free(storage, -1)
    present = {storage for storage in touched if storage not in made}
    for step in steps:
        operands, flags, outputs = [], [], []
        for access in step.reads:
            operands.append(tensor(access.tensor))
            flags.append(READS)
        for access in step.writes:
            storage = access.tensor.storage
            if storage in present or storage < 0:
                operands.append(tensor(access.tensor))
                flags.append(WRITES)
            else:
                present.add(storage)
                outputs.append(tensor(access.tensor))
        graph.add_call(
            graph.add_op_facts(_REGION if step.region else _LIBRARY),
            graph.add_template((HOLE,) * len(operands), (), (HOLE,) * len(outputs)),
            operands,
            flags,
            outputs,
            source=source,
            phase=eager.phase(step.calls[0]) if step.calls else "other",
            stream=eager.stream(step.calls[0]) if step.calls else 0,
        )
    last: dict[int, list[int]] = {}
    for storage, number in touched.items():
        if storage in freed:
            last.setdefault(number, []).append(storage)
    for number, storages in sorted(last.items()):
        for storage in storages:
            graph.add_free(storage, number)
    return graph


def _in_place(steps: Sequence[Step], ours: set[int]) -> list[Step]:
    """A region writes into what it is the last to read, where the sizes agree (Inductor's ``inplace_buffers``); ``ours``
    are the storages that the run makes and frees."""
    last: dict[int, int] = {}
    first: dict[int, int] = {}
    for number, step in enumerate(steps):
        for access in (*step.reads, *step.writes):
            last[access.tensor.storage] = number
        for access in step.writes:
            first.setdefault(access.tensor.storage, number)
    stands_for: dict[int, int] = {}

    def tensor(meta: TensorMeta) -> TensorMeta:
        storage = stands_for.get(meta.storage)
        return meta if storage is None else replace(meta, storage=storage)

    def moved(accesses: tuple[Access, ...]) -> tuple[Access, ...]:
        if not any(access.tensor.storage in stands_for for access in accesses):
            return accesses
        return tuple([replace(access, tensor=tensor(access.tensor)) for access in accesses])

    found = []
    for number, step in enumerate(steps):
        reads = moved(step.reads)
        if step.region and step.node is None:
            dying = {
                access.nbytes: access.tensor.storage
                for access, at in zip(step.reads, reads, strict=True)
                if last[access.tensor.storage] == number
                and access.tensor.storage in ours
                and access.nbytes == at.tensor.storage_bytes
            }
            for access in step.writes:
                storage = access.tensor.storage
                if first[storage] == number and storage >= 0 and access.nbytes in dying:
                    old = dying.pop(access.nbytes)
                    stands_for[storage] = stands_for.get(old, old)
        writes = moved(step.writes)
        if reads is not step.reads or writes is not step.writes:
            step = replace(step, reads=reads, writes=writes, work=on(step.work, tensor))
        found.append(step)
    return found
