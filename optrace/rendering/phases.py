"""Phases side by side: what one hands to another, and where each starts.

A training step saves hundreds of activations for its backward pass; drawn one by one they bury it. So each
phase is a column under a head, and one arrow from head to head stands for all tensors that pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from optrace.rendering.columns import Columns
from optrace.rendering.picture import Picture, PictureNode
from optrace.report import Report


@dataclass(frozen=True, slots=True)
class Passing:
    """Distinct ``tensors``, and their bytes, that ``src`` hands to ``dst``."""

    src: str
    dst: str
    tensors: int
    nbytes: int


def passing(report: Report, picture: Picture) -> list[Passing]:
    """What phases hand to each other."""
    found: dict[tuple[str, str], set[int]] = defaultdict(set)
    for src, dst, edge in picture.edges:
        phases = (picture.phase_of(src), picture.phase_of(dst))
        if phases[0] != phases[1] and edge.kind == "data":
            found[phases].update(edge.tensors)
    return [
        Passing(src, dst, len(tensors), sum(report.graph.tensor(tensor).nbytes for tensor in tensors))
        for (src, dst), tensors in found.items()
    ]


def starts(picture: Picture, columns: Columns) -> Iterator[PictureNode]:
    """Nodes that no earlier node of their column leads to."""
    fed = {
        dst.id
        for src, dst, _ in picture.edges
        if columns.column[src.id] == columns.column[dst.id] and src.lead < dst.lead
    }
    return (node for node in picture.nodes if node.id not in fed)


def head_ids(picture: Picture) -> Mapping[str, str]:
    """The DOT name of each phase's head."""
    return {phase: f"phase{number}" for number, phase in enumerate(picture.phases)}
