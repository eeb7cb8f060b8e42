"""Long chains broken into columns, as a long text is.

An op graph is mostly one chain, and laid out from top to bottom a training step is a strip nobody can look
at. Each phase is cut where few tensors pass, between modules rather than inside them, and the edges over a
cut do not push the next column down.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, pairwise

from optrace.rendering.picture import Picture, PictureNode

#: A rank takes about 0.85 inches and a column 3.2, and a page may be twice as high as wide: ``ranks`` fit
#: the page in ``sqrt(ranks / 7.5)`` columns.
_RANKS_OF_ONE_COLUMN = 7.5


@dataclass(frozen=True, slots=True)
class Columns:
    """``column`` of each node: its phase, and a number from 0. ``beside``: nodes of which the second stands
    in the next column, at the same height inside the box that both are in."""

    column: Mapping[str, tuple[str, int]]
    beside: Sequence[tuple[str, str]]


def columns(picture: Picture) -> Columns:
    """Break each phase into as many columns as its longest chain asks for."""
    by_phase: dict[str, list[PictureNode]] = defaultdict(list)
    for node in picture.nodes:
        by_phase[picture.phase_of(node)].append(node)
    users = _users(picture)
    column: dict[str, tuple[str, int]] = {}
    beside: list[tuple[str, str]] = []
    for phase, nodes in by_phase.items():
        bounds = [0, *_cuts(nodes, users), len(nodes)]
        for number, (start, end) in enumerate(pairwise(bounds)):
            column.update((node.id, (phase, number)) for node in nodes[start:end])
        for start, cut in pairwise(bounds[:-1]):
            box = _common(nodes[cut - 1].group, nodes[cut].group)
            inside = (node.id for node in nodes[start:cut] if node.group[: len(box)] == box)
            beside.append((next(inside), nodes[cut].id))
    return Columns(column, beside)


def _users(picture: Picture) -> Mapping[str, list[str]]:
    """Later nodes of the same phase that use what a node makes."""
    users: dict[str, list[str]] = defaultdict(list)
    for src, dst, edge in picture.edges:
        if edge.kind == "data" and src.lead < dst.lead and picture.phase_of(src) == picture.phase_of(dst):
            users[src.id].append(dst.id)
    return users


def _cuts(nodes: Sequence[PictureNode], users: Mapping[str, list[str]]) -> list[int]:
    """Places in a phase's nodes, in the order of their calls, before which a new column begins: near the
    even split, the outermost boundary between modules that the fewest tensors pass."""
    rank = dict.fromkeys((node.id for node in nodes), 0)
    for node in nodes:
        for user in users.get(node.id, ()):
            rank[user] = max(rank[user], rank[node.id] + 1)
    wanted = round(math.sqrt((max(rank.values()) + 1) / _RANKS_OF_ONE_COLUMN))
    place = {node.id: number for number, node in enumerate(nodes)}
    passing = [0] * (len(nodes) + 1)
    for node in nodes:
        if node.id in users:
            passing[place[node.id] + 1] += 1
            passing[max(place[user] for user in users[node.id]) + 1] -= 1
    passing = list(accumulate(passing))

    def badness(at: int, ideal: float) -> tuple[int, float]:
        return passing[at] + len(_common(nodes[at - 1].group, nodes[at].group)), abs(at - ideal)

    boxed = {node.group[:depth] for node in nodes for depth in range(len(node.group))}
    length = len(nodes) / max(1, wanted)
    cuts = set()
    for number in range(1, wanted):
        ideal = number * length
        window = range(max(1, math.ceil(ideal - length / 3)), min(len(nodes), int(ideal + length / 3) + 1))
        fitting = [(badness(at, ideal), at) for at in window if _may_cut(nodes[at - 1], nodes[at], boxed)]
        cuts.update([min(fitting)[1]] if fitting else [])
    return sorted(cuts)


def _may_cut(before: PictureNode, after: PictureNode, boxed: Set[tuple[str, ...]]) -> bool:
    """From one box to the next, or within a plain list of nodes: layout programs do not keep columns apart
    that mix nodes with boxes."""
    common = _common(before.group, after.group)
    return (before.group != common and after.group != common) or common not in boxed


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """The path of the innermost box around both."""
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    return one[:shared]
