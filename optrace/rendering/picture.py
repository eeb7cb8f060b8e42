"""What a picture is made of: nodes for calls or groups of calls, edges, and boxes around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import networkx as nx

from optrace.diagnosis import Bound
from optrace.rendering.sums import CostSum

#: What a node of the picture stands for.
NodeKind = Literal["op", "module", "line", "function", "phase"]

#: What is a node of its own outside of folded modules, from fine to coarse: each call; each call that
#: launches something, the others joining a neighbour; repeats of an op from one line together; and so on.
Grain = Literal["call", "launch", "op", "line", "function", "phase"]

_GRAIN_TEXT: dict[Grain, str] = {
    "call": "",
    "launch": "views and other calls that launch nothing are drawn with the call they belong to",
    "op": "repeats of an op from one source line are one node",
    "line": "each source line is one node",
    "function": "each function is one node",
    "phase": "each phase is one node",
}


@dataclass(frozen=True, slots=True)
class Level:
    """How far a picture is folded. ``depth``: modules deeper than it are one node each (None: none is)."""

    grain: Grain
    depth: int | None = None

    def __str__(self) -> str:
        modules = ""
        if self.grain != "phase" and self.depth is not None:
            modules = (
                f"modules deeper than {self.depth} are one node each"
                if self.depth
                else "each module is one node"
            )
        return (
            ", ".join(part for part in (modules, _GRAIN_TEXT[self.grain]) if part) or "every call is a node"
        )


@dataclass(frozen=True, slots=True)
class PictureNode:
    """One node of the picture: a call, or several with summed cost.

    ``lead`` is the call that stands for the others in a label; ``repeats`` how often the thing drawn
    happened (the op, the module); ``group`` the path of the innermost box around it, the phase first where
    several are drawn; ``inside`` what a folded node holds, by wall time.
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
    cls: str = ""
    inside: tuple[str, ...] = ()

    @property
    def is_quiet(self) -> bool:
        """A call that launches nothing: a view, a metadata query, an allocation."""
        return self.kind == "op" and self.bound == "host"

    @property
    def is_single(self) -> bool:
        """One call, but for those that launch nothing and joined it."""
        return self.kind == "op" and self.repeats == 1


@dataclass(frozen=True, slots=True)
class PictureEdge:
    """Dependences between two nodes: ``nbytes`` is what their distinct ``tensors`` hold."""

    kind: Literal["data", "order"]
    tensors: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Group:
    """A box around nodes: a phase or a module."""

    path: tuple[str, ...]
    name: str
    cls: str
    cost: CostSum
    is_phase: bool


@dataclass(frozen=True, slots=True)
class Picture:
    """The graph to draw: a ``PictureNode`` as ``node`` of each node, in the order of their leading calls, a
    ``PictureEdge`` as ``edge`` of each edge, and the boxes around them by path. ``phases`` names the boxes
    of phases; it is empty where the run has only one, and where each phase is one node."""

    graph: nx.MultiDiGraph
    groups: dict[tuple[str, ...], Group]
    phases: tuple[str, ...]
    level: Level
    calls: int

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
