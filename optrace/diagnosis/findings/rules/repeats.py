"""The same result again: tables that depend on no input, ops on the same inputs."""

from __future__ import annotations

from collections.abc import Iterator

from optrace.diagnosis.findings.finding import Hit
from optrace.diagnosis.findings.scene import Scene
from optrace.diagnosis.findings.table import kind
from optrace.graph.opgraph import WRITES

#: A table from which on it is worth a word: this many launches, or bytes written.
_LEAST_LAUNCHES = 3
_LEAST_BYTES = 1 << 20
#: More equal calls from one line are the turns of a loop.
_MOST_REPEATS = 2
#: Factories that only say what memory holds.
_FACTORIES = frozenset(
    {
        "arange", "empty", "empty_like", "empty_strided", "eye", "full", "full_like", "lift_fresh_copy", "linspace", "logspace",
        "new_empty", "new_full", "new_ones", "new_zeros", "ones", "ones_like", "scalar_tensor", "tril_indices", "triu_indices",
        "zeros", "zeros_like",
    }
)  # fmt: skip


@kind("rebuilt-constant", "a mask or table that is built anew each step")
def built_anew_each_step(scene: Scene) -> Iterator[Hit]:
    """Launches of the forward pass that depend on nothing but plain numbers and buffers that nobody writes."""
    constant = _constant_calls(scene)
    component: dict[int, int] = {}
    members: dict[int, list[int]] = {}
    for call in sorted(constant):
        found = sorted({component[source] for source in scene.sources[call] if source in component})
        root = found[0] if found else call
        members.setdefault(root, [])
        for other in found[1:]:
            for member in members.pop(other):
                component[member] = root
                members[root].append(member)
        component[call] = root
        members[root].append(call)
    for calls in members.values():
        launching = sorted(call for call in calls if scene.launches[call])
        written = sum(access.nbytes for call in launching for access in scene.work(call).writes)
        if not any(not scene.graph.operands(call) for call in calls):
            continue  # made of buffers alone: the module's own state, not a table
        if not launching or (len(launching) < _LEAST_LAUNCHES and written < _LEAST_BYTES):
            continue
        names = ", ".join(dict.fromkeys(scene.names[call] for call in launching))
        yield Hit(
            tuple(sorted(launching, key=lambda call: (-scene.wall_us[call], call))),
            f"{len(launching)} launches ({names}) depend on no input: each step builds the same mask or table again.",
            "build it once, keep it as a buffer (register_buffer(..., persistent=False)) and slice it.",
            scene.left_out((*launching, *scene.views_for(launching))),
        )


def _constant_calls(scene: Scene) -> set[int]:
    """Calls whose result is the same in every step."""
    graph = scene.graph
    written_by_data: set[int] = set()
    constant: set[int] = set()
    for call in range(len(scene)):
        if graph.phase(call) not in ("forward", "other"):
            continue
        if _is_constant(scene, call, constant):
            constant.add(call)
    for call in range(len(scene)):
        if call in constant or graph.is_view(call):
            continue
        for tensor, flag in zip(graph.operands(call), graph.operand_flags(call), strict=True):
            if flag & WRITES:
                written_by_data.add(graph.tensor_storage(tensor))
    # What data is written into is no table: an accumulator, a cache.
    return {
        call
        for call in constant
        if not written_by_data.intersection(graph.tensor_storage(tensor) for tensor in graph.outputs(call))
        and not written_by_data.intersection(graph.tensor_storage(tensor) for tensor in graph.operands(call))
    }


def _is_constant(scene: Scene, call: int, constant: set[int]) -> bool:
    graph = scene.graph
    operands = graph.operands(call)
    if "nondeterministic_seeded" in graph.facts(call).tags or scene.work(call).host_wait:
        return False
    if not operands:
        return scene.names[call] in _FACTORIES
    if scene.names[call] in _FACTORIES and scene.names[call] != "lift_fresh_copy":
        return True  # it takes no more than a shape from its operand
    return all(
        source in constant or (source < 0 and _is_buffer(scene, tensor))
        for tensor, source in zip(operands, scene.sources[call], strict=True)
    )


def _is_buffer(scene: Scene, tensor: int) -> bool:
    storage = scene.graph.tensor_storage(tensor)
    return storage >= 0 and scene.graph.storages[storage].kind == "buffer"


@kind("repeated-op", "the same op on the same inputs")
def on_the_same_inputs(scene: Scene) -> Iterator[Hit]:
    """Launching calls with equal arguments, no operand written in between. The next turn of a loop over the whole model,
    as benchmarks and several recorded steps have it, is no repeat."""
    if scene.graph.info.steps > 1:
        return
    repeats: dict[tuple[object, ...], list[int]] = {}
    written = _written_storages(scene)
    for call in range(len(scene)):
        key = _computation(scene, call, written)
        if key is not None:
            repeats.setdefault(key, []).append(call)
    for calls in repeats.values():
        lines = {scene.graph.source_of(call) for call in calls}
        if len(calls) > _MOST_REPEATS and len(lines) == 1:
            continue
        first = calls[0]
        for call in calls[1:]:
            if _is_next_turn(scene, first, call):
                continue
            line = scene.place(first).line
            at = f" at {line}" if line is not None else ""
            yield Hit(
                (call,),
                f"{scene.names[call]} has been computed from the same tensors before{at}.",
                "compute it once and pass the result on.",
                scene.left_out((call,)),
            )


def _computation(scene: Scene, call: int, written: set[int]) -> tuple[object, ...] | None:
    """What is computed, equal for calls with the same result; None where a second result is wanted or may differ."""
    graph = scene.graph
    operands = graph.operands(call)
    # What autograd does twice, nobody can write otherwise; what is cast twice is ``redundant-cast`` for weights.
    if not operands or not scene.launches[call] or graph.phase(call) in ("backward", "optimizer"):
        return None
    if "nondeterministic_seeded" in graph.facts(call).tags or scene.names[call] in _FACTORIES:
        return None
    if any(flag & WRITES for flag in graph.operand_flags(call)):
        return None
    storages = tuple(graph.tensor_storage(tensor) for tensor in operands)
    if written.intersection(graph.tensor_storage(tensor) for tensor in graph.outputs(call)):
        return None
    if len(storages) == 1 and storages[0] >= 0 and graph.storages[storages[0]].kind == "parameter":
        return None
    layouts = tuple((graph.tensor_layout(tensor), graph.tensor_offset(tensor)) for tensor in operands)
    return graph.facts(call).name, scene.arguments(call), storages, layouts, scene.versions[call]


def _is_next_turn(scene: Scene, first: int, call: int) -> bool:
    """The same module has been called again."""
    one, other = scene.graph.module_call(first), scene.graph.module_call(call)
    return one is not None and other is not None and one.path == other.path and one.call != other.call


def _written_storages(scene: Scene) -> set[int]:
    """Storages that some call writes in place: a second copy of those is wanted."""
    graph = scene.graph
    found: set[int] = set()
    for call in range(len(scene)):
        for tensor, flag in zip(graph.operands(call), graph.operand_flags(call), strict=True):
            if flag & WRITES:
                found.add(graph.tensor_storage(tensor))
    return found
