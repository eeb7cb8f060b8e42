"""Many equal little calls where one would do: optimizers that step parameter by parameter, loops in Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from optrace import units
from optrace.cost.rules.foreach import multi_tensor_launches
from optrace.cost.work import Access, Work
from optrace.diagnosis.findings.finding import Hit
from optrace.diagnosis.findings.scene import Scene
from optrace.diagnosis.findings.table import kind
from optrace.graph import TensorMeta
from optrace.graph.opgraph import WRITES

#: Launches from which an optimizer's loop is worth a word, and turns from which a loop in Python is.
_LEAST_LAUNCHES = 8
_LEAST_TURNS = 8

#: torch.optim's functions that step one parameter after the other.
_LOOP = "_single_tensor_"

#: Lists of tensors of a fused optimizer with all of its state.
_LISTS = 5


@kind("loop-optimizer", "an optimizer that steps parameter by parameter")
def steps_parameter_by_parameter(scene: Scene) -> Iterator[Hit]:
    """torch.optim's single-tensor implementations, named ``_single_tensor_*``."""
    stepped: dict[str, list[int]] = defaultdict(list)
    for call in range(len(scene)):
        if scene.graph.phase(call) == "optimizer":
            frames = scene.graph.source(call).frames
            name = next((f.function for f in frames if f.function.startswith(_LOOP)), "")
            if name:
                stepped[name].append(call)
    steps = ((name, calls) for name, stepping in stepped.items() for calls in _steps(scene, stepping))
    for name, calls in steps:
        launching = [call for call in calls if scene.launches[call]]
        if len(launching) < _LEAST_LAUNCHES:
            continue
        launches = sum(scene.launches[call] for call in launching)
        tensors = _largest_by_storage(scene, launching)
        fused, device_us = _fused(scene, tensors)
        # What the optimizer does before it begins, a fused one does too.
        first = calls[0]
        one = scene.one_call(first, device_us, fused, "foreach", tensors=len(tensors))
        yield Hit(
            tuple(calls),
            f"{name.removeprefix(_LOOP)} loops over its parameters in Python: {launches:,} launches, "
            f"where a fused step takes {fused}.",
            "pass fused=True to the optimizer, or foreach=True where it has no fused step.",
            {**dict.fromkeys(calls), first: one},
        )


def _steps(scene: Scene, calls: Sequence[int]) -> Iterator[list[int]]:
    """An optimizer's calls, step by step: a new one begins after calls of anything else, and where what was written
    in a turn of the loop is written in another. A turn ends where the lines of the loop begin again."""
    step: list[int] = []
    turn, before = 0, (-1, [-1])
    written_in: dict[int, int] = {}
    for call in calls:
        elsewhere = step and any(
            scene.graph.phase(between) != "optimizer" for between in range(step[-1] + 1, call)
        )
        if writes := _written(scene, call):
            here = (_line_in_loop(scene, call), writes)
            turn += here[0] < before[0] or (here[0] == before[0] and writes[0] not in before[1])
            before = here
        if elsewhere or any(written_in.get(storage, turn) != turn for storage in writes):
            yield step
            step, written_in = [], {}
        written_in.update(dict.fromkeys(writes, turn))
        step.append(call)
    if step:
        yield step


def _line_in_loop(scene: Scene, call: int) -> int:
    frames = scene.graph.source(call).frames
    return next(frame.line for frame in frames if frame.function.startswith(_LOOP))


def _written(scene: Scene, call: int) -> list[int]:
    """The storages that a call writes."""
    graph = scene.graph
    return [
        graph.tensor_storage(tensor)
        for tensor, flag in zip(graph.operands(call), graph.operand_flags(call), strict=True)
        if flag & WRITES and graph.tensor_storage(tensor) >= 0
    ]


def _largest_by_storage(scene: Scene, calls: Sequence[int]) -> list[tuple[TensorMeta, bool]]:
    """Parameters, gradients and states that calls touch, and whether they write them; results made in between are
    left out."""
    made: set[int] = set()
    found: dict[int, tuple[TensorMeta, bool]] = {}
    for call in calls:
        node = scene.node(call)
        given = {tensor.storage for tensor in node.inputs}
        for tensor, writes in zip(node.inputs, node.writes, strict=True):
            if tensor.storage >= 0 and tensor.storage not in made and tensor.device not in ("cpu", "meta"):
                known = found.get(tensor.storage)
                written = writes or (known is not None and known[1])
                found[tensor.storage] = (tensor, written)
        made.update(tensor.storage for tensor in node.outputs if tensor.storage not in given)
    return list(found.values())


def _fused(scene: Scene, tensors: Sequence[tuple[TensorMeta, bool]]) -> tuple[int, float]:
    """Launches and device time of one step over all parameters at once: each read once, what changes written once."""
    parameters = [
        t for t, written in tensors if written and scene.graph.storages[t.storage].kind == "parameter"
    ]
    parameters = parameters or [tensor for tensor, written in tensors if written]
    launches = max(1, multi_tensor_launches([tensor.numel for tensor in parameters], _LISTS))
    work = Work(
        kernels=launches,
        reads=tuple(Access(tensor, tensor.nbytes) for tensor, _ in tensors),
        writes=tuple(Access(tensor, tensor.nbytes) for tensor, written in tensors if written),
        kind="foreach",
    )
    return launches, scene.device_us(work, work.tensor_bytes)


@kind("python-loop", "a loop in Python over time steps or experts")
def loops_in_python(scene: Scene) -> Iterator[Hit]:
    """The same little call again and again from one line, each time on another slice of one tensor, or in another of
    several modules that do not depend on each other."""
    bodies: dict[tuple[object, ...], dict[tuple[object, ...], list[int]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for call in range(len(scene)):
        if scene.launches[call] and scene.graph.phase(call) in ("forward", "other"):
            place = scene.place(call)
            if place.line is not None:
                body = (place.line.file, place.line.function, _loop_module(scene, call))
                bodies[body][_call_key(scene, call)].append(call)
    for lines in bodies.values():
        looping = [
            calls for calls in lines.values() if len(calls) >= _LEAST_TURNS and _is_small(scene, calls)
        ]
        if not looping:
            continue
        turns = Counter(len(calls) for calls in looping).most_common(1)[0][0]
        if not any(_takes_slices(scene, calls) or _are_independent(scene, calls) for calls in looping):
            continue
        calls = sorted(call for calls in looping for call in calls)
        each = sum(scene.busy_us[call] for call in calls) / len(calls)
        host = sum(scene.host_us[call] for call in calls) / len(calls)
        yield Hit(
            tuple(calls),
            f"the same {len(looping)} calls are made {turns} times over, each {units.predicted_us(each)} on the GPU behind "
            f"{units.predicted_us(host)} of the host.",
            "do all turns in one call: a batched or grouped product over experts, a cuDNN recurrence (nn.LSTM, nn.GRU) "
            "over time steps, or project all time steps before the loop.",
        )


def _loop_module(scene: Scene, call: int) -> str:
    """The module that the loop stands in, as far as its path tells: up to the last layer number."""
    path = scene.module(call)
    return path.rpartition(".*")[0] if ".*" in path else path


def _call_key(scene: Scene, call: int) -> tuple[object, ...]:
    graph = scene.graph
    shapes = tuple(graph.layouts[graph.tensor_layout(tensor)].shape for tensor in graph.operands(call))
    return graph.source_of(call), graph.facts(call).name, shapes, scene.module(call)


def _is_small(scene: Scene, calls: Sequence[int]) -> bool:
    """The host takes longer over them than the GPU."""
    host = sum(scene.host_us[call] for call in calls)
    return sum(scene.busy_us[call] for call in calls) < host


def _takes_slices(scene: Scene, calls: Sequence[int]) -> bool:
    """One module's calls read slices of one tensor, all different."""
    if (
        len({scene.graph.module_of(call) for call in calls}) > len(calls) // 2
        and scene.graph.module_of(calls[0]) >= 0
    ):
        paths = {scene.graph.module_calls[scene.graph.module_of(call)].path for call in calls}
        if len(paths) > 1:
            return False
    graph = scene.graph
    slices: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for call in calls:
        for place, tensor in enumerate(graph.operands(call)):
            storage = graph.tensor_storage(tensor)
            if storage >= 0:
                slices[place][storage].add(graph.tensor_offset(tensor))
    return any(
        len(offsets) >= max(_LEAST_TURNS, len(calls) // 2)
        for by in slices.values()
        for offsets in by.values()
    )


def _are_independent(scene: Scene, calls: Sequence[int]) -> bool:
    """Products or lookups in modules that are alike (``experts.*``), none of which uses what the one before gave."""
    if scene.work(calls[0]).kind != "matmul" and "embedding" not in scene.names[calls[0]]:
        return False
    paths = [scene.graph.module_calls[row].path for row in map(scene.graph.module_of, calls) if row >= 0]
    if len(set(paths)) < _LEAST_TURNS or len(paths) < len(calls):
        return False
    return not any(_depends(scene, later, earlier) for earlier, later in pairwise(calls))


def _depends(scene: Scene, later: int, earlier: int) -> bool:
    """Whether ``later`` uses, through any calls between, what ``earlier`` gave."""
    waiting, seen = [later], {later}
    while waiting:
        for source in scene.sources[waiting.pop()]:
            if source == earlier:
                return True
            if source > earlier and source not in seen:
                seen.add(source)
                waiting.append(source)
    return False
