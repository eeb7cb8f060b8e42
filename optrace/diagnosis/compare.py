"""What changed between two runs of one program: the figures, and the calls that came, went, moved or cost otherwise.

Calls are aligned by phase, module path, op and shape, not by position; what is left over in one module and turns up
in another with the same op and shape has moved. A row is a change with all its repeats: layer numbers are folded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from optrace.diagnosis.alignment import align
from optrace.diagnosis.figures import Figures, figures_of
from optrace.diagnosis.run import Run
from optrace.graph import OpGraph, Phase

ChangeKind = Literal["came", "went", "moved", "changed"]

#: Runs of programs with different names are taken for the same program where this share of the launching calls of the
#: smaller one aligns.
_SAME_PROGRAM = 0.1

#: Op, and the shapes of its tensors.
_Key: TypeAlias = tuple[str, tuple[tuple[int, ...], ...]]
#: Phase and module path.
_Place: TypeAlias = tuple[Phase, str]
#: Kind, and the calls of either side that it is about.
_Row: TypeAlias = tuple[ChangeKind, int | None, int | None]
#: Kind, op, shape, phase, module, the module it moved from.
_Group: TypeAlias = tuple[ChangeKind, str, str, Phase, str, str]


class NothingInCommonError(ValueError):
    """The runs are of two programs."""


@dataclass(frozen=True, slots=True)
class Change:
    """Calls that changed alike: ``before`` in the one run, ``after`` in the other, each empty where there are none.

    ``module`` is the path after the change (before it, for calls that went), with ``*`` for layer numbers;
    ``moved_from`` the path that moved calls had; ``launches``, ``hbm_bytes`` and ``wall_us`` what they add.
    """

    kind: ChangeKind
    op: str
    shape: str
    phase: Phase
    module: str
    moved_from: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    launches: int
    hbm_bytes: int
    wall_us: float

    @property
    def calls(self) -> int:
        return max(len(self.before), len(self.after))

    @property
    def costs(self) -> bool:
        """It changes launches, traffic or the wall clock."""
        return bool(self.launches or self.hbm_bytes or self.wall_us)


@dataclass(frozen=True, slots=True)
class Comparison:
    """``changes`` with the largest change of the wall clock first; ``same`` pairs of calls that did not change."""

    before: Figures
    after: Figures
    changes: tuple[Change, ...]
    same: tuple[tuple[int, int], ...]
    same_wall_us: float

    @property
    def aligned(self) -> int:
        """Calls of the first run that have their like in the second."""
        return len(self.same) + sum(min(len(c.before), len(c.after)) for c in self.changes)


def compare(before: Run, after: Run) -> Comparison:
    """Raises ``NothingInCommonError`` where next to no call of one run has its like in the other."""
    one, other = _Side(before), _Side(after)
    if len(one.roots) == len(other.roots) == 1:
        # The outermost module is named for its class; a renamed class is the same program.
        one.roots_as[one.roots[0]] = other.roots[0]
    pairs, left_before, left_after = _aligned(one, other)
    moved, left_before, left_after = _moved(one, other, left_before, left_after)
    _check(one, other, [*pairs, *moved])
    same = [pair for pair in pairs if _is_same(one, other, *pair)]
    kept = set(same)
    rows: list[_Row] = [
        *(("changed", *pair) for pair in pairs if pair not in kept),
        *(("moved", *pair) for pair in moved),
        *(("went", call, None) for call in left_before),
        *(("came", None, call) for call in left_after),
    ]
    changes = _grouped(one, other, rows)
    return Comparison(
        figures_of(before),
        figures_of(after),
        tuple(sorted(changes, key=lambda change: (-abs(change.wall_us), -abs(change.launches), change.op))),
        tuple(same),
        sum(other.wall_us(b) - one.wall_us(a) for a, b in same),
    )


def _check(one: _Side, other: _Side, pairs: Sequence[tuple[int, int]]) -> None:
    """Raises ``NothingInCommonError`` for runs of two programs."""
    launching = bool(one.launching and other.launching)
    smaller = min(one.launching, other.launching) if launching else min(one.size, other.size)
    aligned = sum(1 for a, _ in pairs if not launching or one.run.priced.costs[a].launches != 0)
    names = [side.graph.info.program or "a program without a name" for side in (one, other)]
    enough = _SAME_PROGRAM * smaller if names[0] != names[1] else 1
    if smaller and aligned < enough:
        what = "launching calls" if launching else "calls"
        raise NothingInCommonError(
            f"these are runs of two programs, {names[0]} and {names[1]}: {aligned} of {smaller:,} {what} have the "
            "same module, op and shapes in both; compare runs of one program, at the same sizes"
        )


class _Side:
    """One run's calls by place and key."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.graph: OpGraph = run.priced.graph
        self.size = len(self.graph)
        self.launching = sum(1 for cost in run.priced.costs if cost.launches != 0)
        self.roots = sorted({row.path.partition(".")[0] for row in self.graph.module_calls.rows})
        self.roots_as: dict[str, str] = {}

    def place(self, call: int) -> _Place:
        """Phase and module path, the outermost module under the name that it goes by."""
        module = self.graph.module_call(call)
        if module is None:
            return self.graph.phase(call), ""
        root, dot, rest = module.path.partition(".")
        return self.graph.phase(call), f"{self.roots_as.get(root, root)}{dot}{rest}"

    def key(self, call: int) -> _Key:
        graph = self.graph
        tensors = (*graph.operands(call), *graph.outputs(call))
        return graph.facts(call).name, tuple(graph.layouts[graph.tensor_layout(t)].shape for t in tensors)

    def by_place(self) -> Mapping[_Place, list[int]]:
        found: dict[_Place, list[int]] = defaultdict(list)
        for call in range(self.size):
            found[self.place(call)].append(call)
        return found

    def layouts(self, call: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Dtype and strides of each tensor of a call."""
        graph = self.graph
        rows = (graph.layouts[graph.tensor_layout(t)] for t in (*graph.operands(call), *graph.outputs(call)))
        return tuple((row.dtype, row.stride) for row in rows)

    def sums(self, calls: Iterable[int]) -> tuple[float, float, float]:
        """Launches, HBM bytes and microseconds of the wall clock of some calls, as far as they are known."""
        costs = self.run.priced.costs
        launches = hbm = wall = 0.0
        for call in calls:
            launches += costs[call].launches or 0
            hbm += costs[call].hbm_bytes or 0
            wall += self.wall_us(call)
        return launches, hbm, wall

    def wall_us(self, call: int) -> float:
        return self.run.timeline.spans[call].wall_us

    def shape(self, call: int) -> str:
        """What the call gives, else what it is given: ``[8, 64]``."""
        shapes = self.key(call)[1]
        outputs = shapes[len(self.graph.operands(call)) :] or shapes
        return str(list(outputs[0])) if outputs else ""


def _aligned(one: _Side, other: _Side) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Pairs in place, module by module, and what is left of either side."""
    pairs: list[tuple[int, int]] = []
    left_before: list[int] = []
    left_after: list[int] = []
    before, after = one.by_place(), other.by_place()
    for place in {**before, **after}:
        here, there = before.get(place, []), after.get(place, [])
        matched = align([one.key(call) for call in here], [other.key(call) for call in there])
        pairs += [(here[a], there[b]) for a, b in matched]
        found_before, found_after = {a for a, _ in matched}, {b for _, b in matched}
        left_before += [call for number, call in enumerate(here) if number not in found_before]
        left_after += [call for number, call in enumerate(there) if number not in found_after]
    return sorted(pairs), sorted(left_before), sorted(left_after)


def _moved(
    one: _Side, other: _Side, before: list[int], after: list[int]
) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Of the calls left over those that turn up elsewhere, in the same module first, and what is left then."""
    moved: list[tuple[int, int]] = []
    for wide in (False, True):
        waiting: dict[object, list[int]] = defaultdict(list)
        for call in reversed(after):
            waiting[_where(other, call, wide)].append(call)
        rest = []
        for call in before:
            places = waiting.get(_where(one, call, wide))
            if places:
                moved.append((call, places.pop()))
            else:
                rest.append(call)
        before = rest
        after = sorted(call for calls in waiting.values() for call in calls)
    return moved, before, after


def _where(side: _Side, call: int, wide: bool) -> object:
    phase, module = side.place(call)
    return (phase, side.key(call)) if wide else (phase, module, side.key(call))


def _is_same(one: _Side, other: _Side, a: int, b: int) -> bool:
    """The same launches on the same dtypes and strides. What crosses HBM is left out: it depends on what the cache
    held."""
    before, after = one.run.priced.costs[a], other.run.priced.costs[b]
    return before.launches == after.launches and one.layouts(a) == other.layouts(b)


def _grouped(one: _Side, other: _Side, rows: Iterable[_Row]) -> list[Change]:
    """Rows that differ only in layer numbers, together."""
    groups: dict[_Group, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for kind, a, b in rows:
        side, call = (other, b) if b is not None else (one, a)
        assert call is not None
        phase, module = side.place(call)
        came_from = one.place(a)[1] if kind == "moved" and a is not None else ""
        op = side.graph.facts(call).name
        group = (kind, op, side.shape(call), phase, folded(module), folded(came_from))
        if a is not None:
            groups[group][0].append(a)
        if b is not None:
            groups[group][1].append(b)
    changes = []
    for group, (before, after) in groups.items():
        gone, here = one.sums(before), other.sums(after)
        changes.append(
            Change(
                *group,
                tuple(before),
                tuple(after),
                launches=int(here[0] - gone[0]),
                hbm_bytes=int(here[1] - gone[1]),
                wall_us=here[2] - gone[2],
            )
        )
    return changes


def folded(path: str) -> str:
    """A module path with its numbers as ``*``: ``GPT.blocks.*.mlp``.

    >>> folded("GPT.blocks.11.mlp.0")
    'GPT.blocks.*.mlp.*'
    """
    return ".".join("*" if part.isdigit() else part for part in path.split("."))
