"""Casts that give back what was there, or do again what the step before did."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from optrace.diagnosis.findings.finding import Hit
from optrace.diagnosis.findings.scene import Place, Scene
from optrace.diagnosis.findings.table import kind
from optrace.graph import TensorMeta


@kind("redundant-cast", "a cast that is not needed")
def casts_not_needed(scene: Scene) -> Iterator[Hit]:
    """Casts there and back with nothing in between, and weights that are cast again and again."""
    casts = [call for call in scene.calls_of("_to_copy") if _is_cast(scene, call)]
    known = set(casts)
    there_and_back = [
        (call, earlier)
        for call in casts
        if (earlier := scene.source(call)) in known and _dtypes(scene, earlier)[0] == _dtypes(scene, call)[1]
    ]
    # Autograd's own go when the forward pass's do; they stand where those stand, in the other order.
    of_autograd: dict[tuple[Place, Place], list[tuple[int, int]]] = defaultdict(list)
    for call, earlier in there_and_back:
        if scene.graph.phase(call) == "backward" and len(scene.users[earlier]) == 1:
            of_autograd[scene.place(earlier), scene.place(call)].append((call, earlier))
    for call, earlier in there_and_back:
        if scene.graph.phase(call) == "backward":
            continue
        gone = [call]
        if len(scene.users[earlier]) == 1:
            gone.append(earlier)
            backward = of_autograd[scene.place(call), scene.place(earlier)]
            gone += backward.pop() if backward else ()
        before, between = _dtypes(scene, earlier)
        yield Hit(
            tuple(gone),
            f"{before} is cast to {between} and back with nothing in between.",
            "leave both casts out.",
            scene.left_out(gone),
        )
    yield from _weight_casts(scene, casts)


def _weight_casts(scene: Scene, casts: list[int]) -> Iterator[Hit]:
    """A weight that does not change is cast at each use; one that is trained, more than once a step."""
    by_weight: dict[tuple[int, str], list[int]] = defaultdict(list)
    for call in casts:
        storage = scene.storage_of(call)
        if scene.source(call) == -1 and storage >= 0 and scene.graph.storages[storage].kind == "parameter":
            by_weight[storage, _dtypes(scene, call)[1]].append(call)
    for (_, dtype), calls in by_weight.items():
        again = calls[scene.graph.info.steps :] if scene.trains else calls
        for call in again:
            before = _dtypes(scene, call)[0]
            yield Hit(
                (call,),
                f"the same weight is cast from {before} to {dtype} again "
                + ("within the step." if scene.trains else "each time it is used."),
                "cast it once and keep that (autocast's cache does so within one context)."
                if scene.trains
                else f"keep the weights in {dtype} (model.to(torch.{dtype})).",
                scene.left_out((call,)),
            )


def _is_cast(scene: Scene, call: int) -> bool:
    before, after = _dtypes(scene, call)
    return before != after and scene.launches[call] > 0


def _dtypes(scene: Scene, call: int) -> tuple[str, str]:
    given, made = _tensors(scene, call)
    return given.dtype, made.dtype


def _tensors(scene: Scene, call: int) -> tuple[TensorMeta, TensorMeta]:
    graph = scene.graph
    return graph.tensor(graph.operands(call)[0]), graph.tensor(graph.outputs(call)[0])
