"""What a recorded run took in and gave back: inputs, attributes, outputs, gradients; by tensor numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from optrace.graph import OpGraph
from optrace.graph.opgraph import WRITES
from optrace.tracing.fx.errors import FxError
from optrace.tracing.fx.metas import ModuleNames
from optrace.tracing.fx.plan import Plan
from optrace.tracing.identity import NO_STORAGE
from optrace.tracing.keeping import WRITES_UNSAID, Kept

#: Kinds of storages that a module or an optimizer owns; any other that the run found is an input.
_FOLDERS = {"parameter": "", "buffer": "", "optimizer state": "optimizer_state.", "gradient": "gradient."}
_LIFTS = frozenset({"aten.lift_fresh.default", "aten.lift_fresh_copy.default", "aten.lift.default"})


@dataclass(frozen=True, slots=True)
class Boundary:
    """``inputs`` in the order of the arguments; ``attributes`` with their dotted names, ``parameters`` among them, and
    of these the ``trained``: autograd can follow them through the module. ``outputs``; ``gradients`` maps what was
    found to what its ``.grad`` is at the end. ``written`` are the inputs and attributes whose bytes the run changes."""

    inputs: tuple[int, ...]
    attributes: dict[int, str]
    parameters: frozenset[int]
    trained: frozenset[int]
    outputs: tuple[int, ...]
    gradients: dict[int, int]
    written: frozenset[int]


def boundary(
    graph: OpGraph,
    plan: Plan,
    kept: Kept | None,
    names: ModuleNames,
    *,
    inputs: Any = None,
    outputs: Any = None,
) -> Boundary:
    """Sort the tensors of a run. Raises ``FxError`` for one of ``inputs`` or ``outputs`` that it does not know."""
    chosen = None if inputs is None else _numbers(kept, inputs, "inputs")
    taken = list(chosen or ())
    attributes: dict[int, str] = {}
    parameters = set()
    constants = _Constants(graph, kept)
    attribute_names = _AttributeNames()
    for number in plan.found:
        if number in taken:
            continue
        storage = graph.tensor_storage(number)
        known = graph.storages[storage] if storage != NO_STORAGE else None
        if known is not None and known.kind in _FOLDERS:
            name = names.relative(graph.tensor_names.get(number, known.name))
            attributes[number] = attribute_names.of(known.kind, name)
            if known.kind == "parameter":
                parameters.add(number)
        elif chosen is not None or number in constants:
            attributes[number] = attribute_names.constant()
        else:
            taken.append(number)
    written = _written_storages(graph)
    changed = frozenset(n for n in (*taken, *attributes) if graph.tensor_storage(n) in written)
    calls = range(len(graph))
    follows = (
        any(graph.autograd(call) for call in calls)
        and not any(graph.phase(call) == "backward" for call in calls)
        and not changed & parameters
    )
    gradients = _gradients(graph, plan, kept)
    return Boundary(
        tuple(taken),
        attributes,
        frozenset(parameters),
        frozenset(parameters & kept.trained) if follows and kept is not None else frozenset(),
        tuple(
            _left_alive(graph, plan, kept, gradients.values())
            if outputs is None
            else _numbers(kept, outputs, "outputs")
        ),
        gradients,
        changed,
    )


def _numbers(kept: Kept | None, tree: Any, what: str) -> list[int]:
    """The numbers of the tensors of a tree, each once."""
    if kept is None:
        raise FxError(f"{what}= asks for tensors of the run, and none was kept: trace with keep_values=True")
    numbers = []
    for place, leaf in enumerate(pytree.tree_leaves(tree)):
        if isinstance(leaf, torch.Tensor):
            number = kept.number_of(leaf)
            if number is None:
                raise FxError(
                    f"{what}: no call of the trace read or made tensor {place}, of shape {tuple(leaf.shape)}"
                )
            numbers.append(number)
    return list(dict.fromkeys(numbers)) if what == "inputs" else numbers


class _Constants:
    """Tensors that came to be inside the run with no call: of Python's numbers, of numpy's arrays."""

    def __init__(self, graph: OpGraph, kept: Kept | None) -> None:
        self._graph = graph
        self._inside = kept.made_inside if kept is not None else set()
        lifts = {number for number, facts in enumerate(graph.ops) if facts.name in _LIFTS}
        self._lifted = {
            number
            for call in range(len(graph))
            if graph.op_of(call) in lifts
            for number in graph.operands(call)
        }

    def __contains__(self, number: int) -> bool:
        return number in self._lifted or self._graph.tensor_storage(number) in self._inside


class _AttributeNames:
    """Dotted names for attributes, each given out once and none that a ``GraphModule`` has already."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._constants = 0

    def of(self, kind: str, name: str) -> str:
        """Parameters and buffers keep their name; what belongs to one of them has a folder of its own."""
        folder = _FOLDERS[kind]
        wanted = folder + name.removesuffix(".grad").replace(".", "_") if folder else name
        first, dot, rest = wanted.partition(".")
        if hasattr(torch.fx.GraphModule, first) or first in ("graph", "meta", "training"):
            wanted = f"{first}_{dot}{rest}"
        found, count = wanted, 1
        while found in self._taken:
            found, count = f"{wanted}_{count}", count + 1
        self._taken.add(found)
        return found

    def constant(self) -> str:
        """As torch's tracers name a tensor that they lift."""
        self._constants += 1
        return f"_tensor_constant{self._constants - 1}"


def _written_storages(graph: OpGraph) -> set[int]:
    written: set[int] = set()
    for call in range(len(graph)):
        unsaid = WRITES_UNSAID.get(graph.facts(call).name)
        if unsaid is not None:
            node = graph[call]
            if node.arg("training"):
                written.update(tensor.storage for name in unsaid for tensor in node.tensors(name))
        for number, flag in zip(graph.operands(call), graph.operand_flags(call), strict=True):
            if flag & WRITES:
                written.add(graph.tensor_storage(number))
    return written - {NO_STORAGE}


def _gradients(graph: OpGraph, plan: Plan, kept: Kept | None) -> dict[int, int]:
    found = set(plan.found)
    if kept is not None:
        known = {*found, *plan.made_by}
        pairs: Iterator[tuple[int, int]] = (
            (number, gradient) for number, gradient in kept.gradients.items() if gradient in known
        )
    else:
        numbers = {name: number for number, name in graph.tensor_names.items()}
        pairs = (
            (number, numbers[f"{name}.grad"])
            for number, name in graph.tensor_names.items()
            if f"{name}.grad" in numbers
        )
    return dict(sorted((number, gradient) for number, gradient in pairs if number in found))


def _left_alive(graph: OpGraph, plan: Plan, kept: Kept | None, gradients: Collection[int]) -> list[int]:
    """What the run made and its program held at its end. What autograd saves is left out, so what a call with an
    autograd node read: that autograd holds it says nothing about the program."""
    made = plan.made_by
    followed = [call for call in range(len(graph)) if graph.autograd(call)]
    read = {number for call in followed for number in graph.operands(call)}
    if kept is not None:
        alive = {number for _, number in kept.alive.values() if number in made}
        return sorted(alive - read - kept.saved - set(gradients))
    copies = [call for call in range(len(graph)) if graph.facts(call).name == "aten.detach.default"]
    out = {
        NO_STORAGE,
        *(graph.tensor_storage(number) for number in (*plan.found, *read, *gradients)),
        *(graph.tensor_storage(number) for call in copies for number in graph.outputs(call)),
        *(storage for call in range(-1, len(graph)) for storage in graph.freed_after(call)),
    }
    last = {graph.tensor_storage(number): number for number in made}
    return sorted(number for storage, number in last.items() if storage not in out)
