"""What the picture shows: every call, or groups of calls with their costs summed.

A call's place is its phase, then its module, then its source line. Folding replaces places by one node
each, from the finest level to the coarsest: first repeats (the same op, from the same line, in the same
module), then modules from the deepest up, then source lines, functions and phases outside of modules. Each
level is one pass over the calls, and sums are kept: every call belongs to exactly one node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import networkx as nx

from optrace.diagnosis import Bound
from optrace.graph import Frame, OpGraph, Phase
from optrace.rendering.options import DrawOptions
from optrace.rendering.sums import CostSum, cost_of, shared_bound
from optrace.report import Report

#: What a node of the picture stands for.
NodeKind = Literal["op", "module", "line", "function", "phase"]

#: What the calls outside of folded modules fold by.
Grain = Literal["call", "op", "line", "function", "phase"]

PHASE_NAMES: dict[Phase, str] = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "other": "set-up",
}

Key: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Level:
    """How far a picture is folded. ``depth``: modules deeper than it are one node each (None: none is)."""

    grain: Grain
    depth: int | None = None

    def __str__(self) -> str:
        parts = []
        if self.depth == 0:
            parts.append("each module is one node")
        elif self.depth is not None:
            parts.append(f"modules deeper than {self.depth} are one node each")
        if self.grain == "op":
            parts.append("repeats of an op from one source line are one node")
        elif self.grain != "call":
            parts.append(f"each {'source line' if self.grain == 'line' else self.grain} is one node")
        return ", ".join(parts) or "every call is a node"


@dataclass(frozen=True, slots=True)
class Group:
    """A box around nodes: a phase or a module. ``path`` starts with the phase where several are drawn."""

    path: tuple[str, ...]
    name: str
    cls: str
    wall_us: float
    is_phase: bool


@dataclass(frozen=True, slots=True)
class PictureNode:
    """One node of the picture: a call, or several with summed cost.

    ``group`` is the path of the innermost box around it; ``repeats`` how often the thing drawn happened
    (calls of a folded op, calls of a folded module); ``inside`` what a folded node holds, largest first.
    """

    id: str
    kind: NodeKind
    label: str
    calls: Sequence[int]
    group: tuple[str, ...]
    cost: CostSum
    bound: Bound
    repeats: int = 1
    cls: str = ""
    inside: tuple[str, ...] = ()

    @property
    def call(self) -> int:
        """The first of its calls: what stands for the others in a label."""
        return self.calls[0]


@dataclass(frozen=True, slots=True)
class PictureEdge:
    """Dependences between two nodes: ``nbytes`` is what their distinct ``tensors`` hold."""

    kind: Literal["data", "order"]
    tensors: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Picture:
    """The graph to draw: ``PictureNode`` as ``node`` of each node, ``PictureEdge`` as ``edge`` of each edge,
    and the boxes around them by path."""

    graph: nx.MultiDiGraph
    groups: dict[tuple[str, ...], Group]
    level: Level
    calls: int

    @property
    def nodes(self) -> Iterator[PictureNode]:
        return (data["node"] for _, data in self.graph.nodes(data=True))

    @property
    def folded(self) -> bool:
        return len(self.graph) < self.calls


@dataclass(frozen=True, slots=True)
class _Place:
    """Where calls stand: what all folding goes by. ``phase`` is empty where the run has only one."""

    phase: str
    module: tuple[str, ...]
    line: Frame | None
    op: str

    def key(self, level: Level) -> tuple[NodeKind, Key]:
        """The node that its calls belong to (a call of its own where that is ``op`` and the grain ``call``)."""
        if level.grain == "phase":
            return "phase", (self.phase,)
        if level.depth is not None and len(self.module) > level.depth:
            return "module", (self.phase, self.module[: level.depth + 1])
        if level.grain == "line" and self.line:
            return "line", (self.phase, self.module, self.line.file, self.line.line)
        if level.grain == "function" and self.line:
            return "function", (self.phase, self.module, self.line.file, self.line.function)
        return "op", (self.phase, self.module, self.line, self.op)


class Folder:
    """A report's calls by place, ready to be drawn at any level."""

    def __init__(self, report: Report) -> None:
        self.report = report
        graph = report.graph
        self._places, self._place_of = _places(graph)
        self._classes = {call.path: call.cls for call in graph.module_calls.rows}
        self.deepest = max((len(place.module) for place in self._places), default=0)

    def levels(self, options: DrawOptions) -> list[tuple[Level, int]]:
        """Every level from the finest that ``options`` allow to the coarsest, with its number of nodes."""
        asked = options.depth
        top = self.deepest if asked is None else min(asked, self.deepest)
        levels = [Level("call", asked), Level("op", asked)]
        levels += [Level("op", depth) for depth in range(top - 1, -1, -1)]
        levels += [Level("line", 0), Level("function", 0), Level("phase", 0)]
        return [(level, self._count(level)) for level in levels]

    def picture(self, level: Level) -> Picture:
        """The graph to draw at one level."""
        graph = nx.MultiDiGraph()
        members: dict[tuple[NodeKind, Key], list[int]] = defaultdict(list)
        keys = [place.key(level) for place in self._places]
        for call, place in enumerate(self._place_of):
            kind, key = keys[place]
            members[(kind, (call,) if kind == "op" and level.grain == "call" else key)].append(call)
        home = [""] * len(self._place_of)
        walls: dict[tuple[str, ...], float] = defaultdict(float)
        for (kind, _), calls in members.items():
            node = self._node(kind, calls, level)
            graph.add_node(node.id, node=node)
            for call in calls:
                home[call] = node.id
            for length in range(1, len(node.group) + 1):
                walls[node.group[:length]] += node.cost.wall_us
        for src, dst, edge in _edges(self.report.graph, graph, home):
            graph.add_edge(src, dst, edge=edge)
        groups = {path: self._group(path, wall_us) for path, wall_us in walls.items()}
        return Picture(graph, groups, level, len(self._place_of))

    def _count(self, level: Level) -> int:
        single = 0
        keys = set()
        for place, calls in zip(self._places, self._calls_of_places, strict=True):
            kind, key = place.key(level)
            if kind == "op" and level.grain == "call":
                single += calls
            else:
                keys.add((kind, key))
        return single + len(keys)

    @property
    def _calls_of_places(self) -> list[int]:
        counts = [0] * len(self._places)
        for place in self._place_of:
            counts[place] += 1
        return counts

    def _node(self, kind: NodeKind, calls: list[int], level: Level) -> PictureNode:
        report = self.report
        place = self._places[self._place_of[calls[0]]]
        cost = CostSum()
        for call in calls:
            cost = cost + cost_of(report, call)
        bound = shared_bound((report.bounds[call] for call in calls), cost)
        phase = (place.phase,) if place.phase else ()
        inside = () if kind == "op" else self._inside(calls)
        line = place.line
        name, group, repeats, cls = "", phase + place.module, 1, ""
        if kind == "op":
            name, repeats = _label(place.op), len(calls)
        elif kind == "module":
            assert level.depth is not None
            path = place.module[: level.depth + 1]
            name, group = path[-1], phase + path[:-1]
            cls = self._classes.get(".".join(path), "")
            repeats, inside = self._module_calls(path, calls), self._children(path, calls) + inside
        elif kind == "phase":
            name, group = place.phase or "all calls", ()
        elif line is not None:
            name = _short(line) if kind == "line" else f"{line.function} in {_file_name(line)}"
        return PictureNode(f"n{calls[0]}", kind, name, calls, group, cost, bound, repeats, cls, inside)

    def _group(self, path: tuple[str, ...], wall_us: float) -> Group:
        is_phase = bool(self._places[0].phase) and len(path) == 1
        module = path[1:] if self._places[0].phase else path
        return Group(path, path[-1], self._classes.get(".".join(module), ""), wall_us, is_phase)

    def _inside(self, calls: list[int]) -> tuple[str, ...]:
        """Ops of a folded node, by wall time."""
        walls: dict[str, float] = defaultdict(float)
        counts: dict[str, int] = defaultdict(int)
        for call in calls:
            op = _label(self._places[self._place_of[call]].op)
            walls[op] += self.report.timeline.spans[call].wall_us
            counts[op] += 1
        ranked = sorted(walls, key=lambda op: (-walls[op], -counts[op], op))
        return tuple(f"{op} x{counts[op]:,}" for op in ranked)

    def _children(self, path: tuple[str, ...], calls: list[int]) -> tuple[str, ...]:
        """Modules directly inside a folded one, by class: ``Block x12``."""
        children = {
            module[: len(path) + 1]
            for module in {self._places[self._place_of[call]].module for call in calls}
            if len(module) > len(path)
        }
        classes: dict[str, int] = defaultdict(int)
        for child in sorted(children):
            classes[self._classes.get(".".join(child), "")] += 1
        return tuple(f"{cls} x{count}" for cls, count in classes.items() if cls and count > 1)

    def _module_calls(self, path: tuple[str, ...], calls: list[int]) -> int:
        """How often the module at ``path`` was called, as far as its own ops and its submodules' tell."""
        graph = self.report.graph
        numbers: dict[str, set[int]] = defaultdict(set)
        for row in {graph.module_of(call) for call in calls}:
            if row >= 0:
                numbers[graph.module_calls[row].path].add(graph.module_calls[row].call)
        own = numbers.get(".".join(path))
        return len(own) if own else 1


def _places(graph: OpGraph) -> tuple[list[_Place], list[int]]:
    """The distinct places of a graph's calls, and the place of each call."""
    phases = {graph.phase(call) for call in range(len(graph))}
    lines = [source.line for source in graph.sources.rows]
    modules = [tuple(call.path.split(".")) for call in graph.module_calls.rows]
    rows: dict[_Place, int] = {}
    by_columns: dict[tuple[Phase, int, int, str], int] = {}
    place_of: list[int] = []
    for call in range(len(graph)):
        columns = (graph.phase(call), graph.module_of(call), graph.source_of(call), graph.facts(call).name)
        row = by_columns.get(columns)
        if row is None:
            phase, module, source, op = columns
            place = _Place(
                PHASE_NAMES[phase] if len(phases) > 1 else "",
                modules[module] if module >= 0 else (),
                lines[source],
                op,
            )
            row = by_columns[columns] = rows.setdefault(place, len(rows))
        place_of.append(row)
    return list(rows), place_of


def _edges(
    graph: OpGraph, picture: nx.MultiDiGraph, home: list[str]
) -> Iterator[tuple[str, str, PictureEdge]]:
    """Edges between nodes. Two calls keep each of their edges (``x + x`` has two); between folded nodes all
    edges of a kind are one."""
    single = {name for name, data in picture.nodes(data=True) if len(data["node"].calls) == 1}
    merged: dict[tuple[str, str, Literal["data", "order"]], dict[int, None]] = defaultdict(dict)
    data_edges: list[tuple[str, str, PictureEdge]] = []
    for edge in graph.edges:
        src, dst = home[edge.src], home[edge.dst]
        if src == dst:
            continue
        if edge.kind == "data" and src in single and dst in single:
            nbytes = graph.tensor(edge.tensor).nbytes
            data_edges.append((src, dst, PictureEdge("data", (edge.tensor,), nbytes)))
        else:
            merged[(src, dst, edge.kind)][edge.tensor] = None
    order_edges: list[tuple[str, str, PictureEdge]] = []
    for (src, dst, kind), tensors in merged.items():
        total = sum(graph.tensor(tensor).nbytes for tensor in tensors)
        edges = data_edges if kind == "data" else order_edges
        edges.append((src, dst, PictureEdge(kind, tuple(tensors), total)))
    yield from data_edges
    yield from _telling(list(picture), data_edges, order_edges)


#: Reachability takes nodes^2 bits.
_REACHABLE_NODES = 5000


def _telling(
    nodes: list[str],
    data_edges: list[tuple[str, str, PictureEdge]],
    order_edges: list[tuple[str, str, PictureEdge]],
) -> Iterator[tuple[str, str, PictureEdge]]:
    """The order edges that no path of other edges implies already.

    An optimizer's in-place update must follow each read of its parameter, but all of them already lie on
    the way to the gradient it uses. Nodes stand in the order of their first call; an edge against it comes
    from folding a loop and says nothing.
    """
    if len(nodes) > _REACHABLE_NODES:
        yield from order_edges
        return
    place = {name: number for number, name in enumerate(nodes)}
    before: dict[int, list[int]] = defaultdict(list)
    for src, dst, _ in data_edges:
        before[place[dst]].append(place[src])
    waiting: dict[int, list[tuple[str, str, PictureEdge]]] = defaultdict(list)
    for item in order_edges:
        if place[item[0]] < place[item[1]]:
            waiting[place[item[1]]].append(item)
    reach: list[int] = []
    for number in range(len(nodes)):
        mask = 0
        for earlier in before[number]:
            if earlier < number:
                mask |= reach[earlier] | 1 << earlier
        for item in sorted(waiting[number], key=lambda item: -place[item[0]]):
            earlier = place[item[0]]
            if not mask >> earlier & 1:
                yield item
                mask |= reach[earlier] | 1 << earlier
        reach.append(mask)


def _label(op: str) -> str:
    """``add`` of ``aten.add.Tensor``: the name people say."""
    namespace, _, rest = op.partition(".")
    name = rest.rpartition(".")[0] or rest
    return name if namespace == "aten" else f"{namespace}.{name}"


def _file_name(frame: Frame) -> str:
    return frame.file.replace("\\", "/").rpartition("/")[2]


def _short(frame: Frame) -> str:
    return f"{_file_name(frame)}:{frame.line}"
