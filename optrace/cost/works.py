"""What each call of a run makes the GPU do, kept once for all calls that are alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from optrace.cost.profiles import Target
from optrace.cost.rules import work_of
from optrace.cost.signatures import signatures
from optrace.cost.work import Access, Operand, Pass, Work
from optrace.graph import Columns, OpGraph, TensorMeta
from optrace.graph.columns import Ints


@dataclass(frozen=True, slots=True)
class Works:
    """``distinct`` work, each of the call ``first``; ``of[call]`` says which one a call does, on tensors of its own."""

    distinct: tuple[Work, ...]
    first: Ints
    of: Ints

    @classmethod
    def of_graph(cls, graph: OpGraph, columns: Columns, target: Target) -> Works:
        """By rule or schema."""
        alike = signatures(columns)
        distinct = tuple(work_of(graph[call], target) for call in alike.first.tolist())
        return cls(distinct, alike.first, alike.of)

    @classmethod
    def one_a_call(cls, works: Sequence[Work]) -> Works:
        """Work that is known call by call."""
        return cls(tuple(works), np.arange(len(works)), np.arange(len(works)))

    def of_call(self, call: int, graph: OpGraph) -> Work:
        """A call's work on its own tensors."""
        number = int(self.of[call])
        work, first = self.distinct[number], int(self.first[number])
        if first == call:
            return work
        theirs = [graph.tensor(t) for t in (*graph.operands(first), *graph.outputs(first))]
        own = [graph.tensor(t) for t in (*graph.operands(call), *graph.outputs(call))]
        pairs = {a.id: (a, b) for a, b in zip(theirs, own, strict=True)}
        storages = {a.storage: b.storage for a, b in zip(theirs, own, strict=True)}

        def tensor(meta: TensorMeta) -> TensorMeta:
            pair = pairs.get(meta.id)
            if pair is not None and pair[0] == meta:
                return pair[1]
            number = meta.id if pair is None else pair[1].id
            return replace(meta, storage=storages.get(meta.storage, meta.storage), id=number)

        return on(work, tensor)


def on(work: Work, tensor: Callable[[TensorMeta], TensorMeta]) -> Work:
    """The work with each of its tensors put in another's place."""
    known: dict[int, Access] = {}

    def access(one: Access) -> Access:
        moved = known.get(id(one))
        if moved is None:
            moved = known[id(one)] = Access(tensor(one.tensor), one.nbytes, one.scattered)
        return moved

    def operands(some: tuple[Operand, ...]) -> tuple[Operand, ...]:
        return tuple([one if isinstance(one, int) else access(one) for one in some])

    def passed(one: Pass) -> Pass:
        return replace(one, reads=operands(one.reads), writes=operands(one.writes))

    return replace(
        work,
        reads=tuple(map(access, work.reads)),
        writes=tuple(map(access, work.writes)),
        rereads=tuple(map(access, work.rereads)),
        passes=tuple(map(passed, work.passes)),
    )
