"""Where each operand of a recorded run comes from, worked out on tensor numbers, with no torch.

Autograd and ``.data`` make tensor objects by no call: a second one of the same bytes. Such an operand stands for the
tensor that was last made or found with its layout, or is cut out of one with the same storage.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from optrace.graph import OpGraph
from optrace.tracing.identity import NO_STORAGE

#: Layout, storage, offset, and whether the tensor shows its bytes conjugated or negated.
_View = tuple[int, int, int, bool]


@dataclass(frozen=True, slots=True)
class Plan:
    """``found``: numbers of the tensors that the run started from, by first use. ``same_as`` maps an operand to
    another tensor with its bytes and layout, ``cut_from`` to one whose storage it lies in. ``read`` are the operands
    of calls; ``made_by`` maps a tensor to the call that made it."""

    found: tuple[int, ...]
    same_as: dict[int, int]
    cut_from: dict[int, int]
    read: frozenset[int]
    made_by: dict[int, int]


@dataclass(slots=True)
class _Known:
    tensors: set[int] = field(default_factory=set)
    views: dict[_View, int] = field(default_factory=dict)
    storages: dict[int, int] = field(default_factory=dict)


def plan(graph: OpGraph, *, conjugated: Collection[int] = ()) -> Plan:
    """Follow the tensors of ``graph`` through its calls; ``conjugated`` are those that show their bytes so."""
    found: list[int] = []
    same_as: dict[int, int] = {}
    cut_from: dict[int, int] = {}
    read: set[int] = set()
    made_by: dict[int, int] = {}
    known = _Known()
    inside: set[int] = set()  # storages that a call made

    def view(number: int) -> _View:
        return (
            graph.tensor_layout(number),
            graph.tensor_storage(number),
            graph.tensor_offset(number),
            number in conjugated,
        )

    for call in range(len(graph)):
        operands = graph.operands(call)
        for number in operands:
            read.add(number)
            if number in known.tensors:
                continue
            known.tensors.add(number)
            storage = graph.tensor_storage(number)
            other = known.views.get(view(number)) if storage != NO_STORAGE else None
            if other is not None:
                same_as[number] = other
            elif storage in inside:
                cut_from[number] = known.storages[storage]
            else:
                found.append(number)
                known.views[view(number)] = number
        if "inplace_view" in graph.facts(call).tags:
            # The object has another layout from now on: it no longer stands for the old one.
            for number in operands:
                if known.views.get(view(number)) == number:
                    del known.views[view(number)]
        given = {graph.tensor_storage(number) for number in operands}
        for number in graph.outputs(call):
            storage = graph.tensor_storage(number)
            if number not in known.tensors:
                known.tensors.add(number)
                made_by[number] = call
                if storage != NO_STORAGE and storage not in given and storage not in known.storages:
                    inside.add(storage)
            if storage != NO_STORAGE:
                known.views[view(number)] = number
                known.storages[storage] = number
    return Plan(tuple(found), same_as, cut_from, frozenset(read), made_by)
