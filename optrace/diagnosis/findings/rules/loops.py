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
from optrace.timeline import Task

#: Launches from which an optimizer's loop is worth a word, and turns from which a loop in Python is.
_LEAST_LAUNCHES = 8
_LEAST_TURNS = 8

#: torch.optim's functions that step one parameter after the other; those with a fused step, and the one that has neither
#: that nor foreach.
_LOOP = "_single_tensor_"
_FUSED = frozenset({"adam", "adamw", "adagrad", "sgd"})
_NO_OTHER_WAY = frozenset({"muon"})

#: Lists of tensors of a fused optimizer with all of its state.
_LISTS = 5


@kind("loop-optimizer", "an optimizer that steps parameter by parameter")
def steps_parameter_by_parameter(scene: Scene) -> Iterator[Hit]:
    """torch.optim's single-tensor implementations, named ``_single_tensor_*``."""
    stepped: dict[str, list[int]] = defaultdict(list)
    for call in range(len(scene)):
        if scene.graph.phase(call) == "optimizer":
            frames = scene.graph.source(call).frames
            function = next((f.function for f in frames if f.function.startswith(_LOOP)), "")
            name = function.removeprefix(_LOOP)
            if name and name not in _NO_OTHER_WAY:
                stepped[name].append(call)
    steps = ((name, calls) for name, stepping in stepped.items() for calls in _steps(scene, stepping))
    for name, calls in steps:
        launching = [call for call in calls if scene.launches[call]]
        if len(launching) < _LEAST_LAUNCHES:
            continue
        launches = sum(scene.launches[call] for call in launching)
        fused = name in _FUSED
        instead = _fused(scene, calls, launching) if fused else _foreach(scene, calls, launching)
        yield Hit(
            tuple(calls),
            f"{name} loops over its parameters in Python: {launches:,} launches, where "
            + ("a fused step" if fused else "one op for all parameters at a time")
            + f" takes {sum(task.launches for task in instead.values() if task is not None)}.",
            "pass fused=True to the optimizer."
            if fused
            else "pass foreach=True to the optimizer, which has no fused step.",
            instead,
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


def _fused(scene: Scene, calls: Sequence[int], launching: Sequence[int]) -> dict[int, Task | None]:
    """One step over all parameters at once: each tensor is read once, and written once where it changes; before it one
    launch adds to all counters of steps, where parameters have them. What the optimizer does before it begins, the
    fused one does too."""
    counters = [call for call in calls if _counts_steps(scene, call)]
    tensors = _largest_by_storage(scene, launching)
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
    device_us, listed = scene.device_us(work, work.tensor_bytes), len(tensors)
    first, second = calls[:2]
    if not counters:
        return {
            **dict.fromkeys(calls),
            first: scene.one_call(first, device_us, launches, "foreach", tensors=listed),
        }
    return {
        **dict.fromkeys(calls),
        first: _for_all(scene, first, counters),
        second: scene.one_call(second, device_us, launches, "foreach", tensors=listed + len(counters)),
    }


def _foreach(scene: Scene, calls: Sequence[int], launching: Sequence[int]) -> dict[int, Task | None]:
    """One call for all parameters where there was one for each."""
    alike: dict[tuple[int, str], list[int]] = {}
    for call in launching:
        alike.setdefault((scene.graph.source_of(call), scene.names[call]), []).append(call)
    first = calls[0]
    one_each = {same[0]: _for_all(scene, same[0], same) for same in alike.values()}
    return {
        **dict.fromkeys(calls),
        **({} if scene.launches[first] else {first: scene.task(first)}),
        **one_each,
    }


def _for_all(scene: Scene, place: int, same: Sequence[int]) -> Task:
    """One call that does what calls of one op do, at the place of one of them."""
    graph = scene.graph
    operands = [len(graph.operands(call)) for call in same]
    sizes = [scene.node(call).inputs[0].numel for call in same]
    launches = max(1, multi_tensor_launches(sizes, max(operands)))
    works = [scene.work(call) for call in same]
    work = Work(
        kernels=launches,
        reads=tuple(access for each in works for access in each.reads),
        writes=tuple(access for each in works for access in each.writes),
        kind="foreach",
    )
    device_us = scene.device_us(work, work.tensor_bytes)
    return scene.one_call(place, device_us, launches, "foreach", tensors=sum(operands))


def _counts_steps(scene: Scene, call: int) -> bool:
    """A number of one element goes up, on the host or the GPU."""
    node = scene.node(call)
    return scene.names[call] == "add" and any(node.writes) and node.inputs[0].shape == ()


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
