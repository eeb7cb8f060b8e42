"""What a picture is made of: nodes for calls or groups of calls, edges, and boxes around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import networkx as nx

from optrace.diagnosis import Bound
from optrace.rendering.sums import CostSum

#: What a node of the picture stands for.
NodeKind = Literal["op", "module", "loop", "stretch", "phase"]

#: What is a node of its own, from fine to coarse: each call; each call that launches something, the others joining a
#: neighbour; those, or modules that there is no room to open; equal parts once.
Grain = Literal["call", "launch", "part", "repeat"]

GRAIN_TEXT: dict[Grain, str] = {
    "call": "modules below the depth are one node each",
    "launch": "views and other calls that launch nothing are drawn with the call they belong to",
    "part": "modules that there is no room for are one node each",
    "repeat": "equal parts are drawn once, with a count and their costs summed",
}


@dataclass(frozen=True, slots=True)
class PictureNode:
    """One node of the picture: a call, or several with summed cost.

    ``lead`` is the call that stands for the others in a label; ``repeats`` how often the thing drawn happens in the
    box around it, ``copies`` in all; ``group`` the path of the innermost box around it, the phase first where several
    are drawn; ``inside`` what a folded node holds, by wall time; ``differs`` what sets it apart from its equals.
    """

    id: str
    kind: NodeKind
    label: str
    lead: int
    calls: Sequence[int]
    group: tuple[str, ...]
    cost: CostSum
    bound: Bound
    repeats: int = 1
    copies: int = 1
    cls: str = ""
    inside: tuple[str, ...] = ()
    differs: str = ""

    @property
    def is_quiet(self) -> bool:
        """A call that launches nothing: a view, a metadata query, an allocation."""
        return self.kind == "op" and self.bound == "host"

    @property
    def is_single(self) -> bool:
        """One call, but for those that launch nothing and joined it."""
        return self.kind == "op" and self.copies == 1


@dataclass(frozen=True, slots=True)
class PictureEdge:
    """Dependences between two nodes: ``nbytes`` is what their distinct ``tensors`` hold."""

    kind: Literal["data", "order"]
    tensors: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Group:
    """A box around nodes: a phase, a module, a loop or a stretch, ``count`` times in the box around it."""

    path: tuple[str, ...]
    name: str
    cost: CostSum
    cls: str = ""
    count: int = 1
    is_module: bool = False
    differs: str = ""
    is_phase: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """The graph to draw: a ``PictureNode`` as ``node`` of each node, in the order of their leading calls, a
    ``PictureEdge`` as ``edge`` of each edge, and the boxes around them by path. ``phases`` names the boxes
    of phases; it is empty where the run has only one, and where each phase is one node. ``closed``: the path of
    the costliest module that is one node."""

    graph: nx.MultiDiGraph
    groups: dict[tuple[str, ...], Group]
    phases: tuple[str, ...]
    grain: Grain
    calls: int
    closed: str = ""

    @property
    def nodes(self) -> Iterator[PictureNode]:
        return (data["node"] for _, data in self.graph.nodes(data=True))

    @property
    def edges(self) -> Iterator[tuple[PictureNode, PictureNode, PictureEdge]]:
        nodes = self.graph.nodes
        return (
            (nodes[src]["node"], nodes[dst]["node"], data["edge"])
            for src, dst, data in self.graph.edges(data=True)
        )

    def phase_of(self, node: PictureNode) -> str:
        """The phase that a node is drawn in; empty where phases are not drawn as boxes."""
        return node.group[0] if self.phases else ""

    @property
    def folded(self) -> bool:
        return len(self.graph) < self.calls
