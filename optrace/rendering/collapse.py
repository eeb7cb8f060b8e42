"""Folding: which calls a picture shows one by one, and which together with their costs summed.

From the finest picture to the coarsest: every call; every call that launches something; then equal parts drawn once
with a count (``optrace.graph.folding``), modules, loops and stretches opened where most of the wall clock goes, as far
as there is room. Sums are kept: every call belongs to exactly one node.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from heapq import heappop, heappush

import networkx as nx

from optrace.graph.folding import Item, fold
from optrace.rendering.errors import RenderError
from optrace.rendering.links import links
from optrace.rendering.options import DrawOptions
from optrace.rendering.picture import Grain, Group, NodeKind, Picture, PictureNode
from optrace.rendering.places import PHASE_NAMES, companions
from optrace.rendering.sums import CostSum, costs_of, shared_bound
from optrace.report import Report

#: What an item of the folded tree is drawn as.
_KINDS: Mapping[str, NodeKind] = {
    "call": "op",
    "module": "module",
    "loop": "loop",
    "stretch": "stretch",
    "phase": "phase",
}

#: The priority of what is opened before all else.
_FIRST = float("inf")


class Folder:
    """A report's calls as trees, to be drawn as finely as ``options`` and a number of nodes allow."""

    def __init__(self, report: Report, options: DrawOptions) -> None:
        self.report = report
        self._options = options
        self._walls: list[float] = report.timeline.spans.wall_us.tolist()

    def pictures(self) -> Iterator[Picture]:
        """The finest picture that the options allow, then coarser ones, each with at most half as many nodes.

        Raises ``RenderError`` for a module to expand that is none of the run's.
        """
        limit = self._options.node_limit
        drawn: int | None = None
        while drawn is None or drawn > 1:
            picture = self._finest(limit)
            if drawn is not None and len(picture.graph) >= drawn:
                return
            yield picture
            drawn = len(picture.graph)
            limit = drawn // 2

    def _finest(self, limit: int) -> Picture:
        """At most ``limit`` nodes, where that can be."""
        if self._may_be_whole(range(len(self.report.graph)), limit):
            cut, whole = self._cut(self._every_call, limit)
            if whole:
                return self._picture(cut, "call")
        if self._options.unfold or self._may_be_whole(self._companions, limit):
            cut, whole = self._cut(self._every_launch, limit)
            if whole:
                return self._picture(cut, "launch")
            if self._options.unfold:
                return self._picture(cut, "part")
        return self._picture(self._cut(self._folded, min(limit, self._options.folded_limit))[0], "repeat")

    def _may_be_whole(self, joins: Sequence[int], limit: int) -> bool:
        """Whether a node a call that is drawn may be within the limit, before a tree of them is made."""
        options = self._options
        if options.depth is not None or options.expand:
            return True
        return sum(call == root for call, root in enumerate(joins)) <= limit

    @cached_property
    def _every_call(self) -> Item:
        return self._tree(range(len(self.report.graph)), repeats=False)

    @cached_property
    def _every_launch(self) -> Item:
        return self._tree(self._companions, repeats=False)

    @cached_property
    def _folded(self) -> Item:
        return self._tree(self._companions, repeats=True)

    @cached_property
    def _companions(self) -> list[int]:
        return companions(self.report)

    def _tree(self, joins: Sequence[int], *, repeats: bool) -> Item:
        try:
            return fold(self.report.graph, joins, repeats=repeats, apart=self._options.expand)
        except LookupError as error:
            raise RenderError(
                f"--expand {error.args[0]}: no call was recorded in a module of that path; pictures, the page and "
                "graph.json name them (Net.layers.3)"
            ) from None

    def _cut(self, root: Item, limit: int) -> tuple[list[Item], bool]:
        """Items to draw as one node each, and whether they are as fine as the depth allows. Opened is what takes most
        of the wall clock, as long as there is room; what was asked for by name in any case."""
        depth = self._options.depth
        closed: list[Item] = []
        whole = True
        drawn, numbers = 1, itertools.count()
        waiting = [(-_FIRST, next(numbers), root)]
        while waiting:
            _, _, item = heappop(waiting)
            may_open = item.kind != "call" and not (
                depth is not None and item.kind == "module" and item.path.count(".") >= depth
            )
            if item.is_wanted or (may_open and drawn - 1 + len(item.children) <= limit):
                drawn += len(item.children) - 1
                for child in item.children:
                    heappush(waiting, (-self._priority(child), next(numbers), child))
            else:
                closed.append(item)
                whole = whole and not may_open
        return closed, whole

    def _priority(self, item: Item) -> float:
        return _FIRST if item.kind == "phase" else sum(self._walls[call] for call in item.calls)

    def _picture(self, cut: Sequence[Item], grain: Grain) -> Picture:
        """The graph to draw."""
        joins = range(len(self.report.graph)) if grain == "call" else self._companions
        members: dict[int, list[int]] = defaultdict(list)
        for call, root in enumerate(joins):
            members[root].append(call)
        around = {_path(box): box for item in cut for box in _boxes(item)}
        nodes = sorted((self._node(item, members, bool(around)) for item in cut), key=lambda node: node.lead)
        home = [0] * len(joins)
        costs: dict[tuple[str, ...], CostSum] = defaultdict(CostSum)
        graph = nx.MultiDiGraph()
        for place, node in enumerate(nodes):
            graph.add_node(node.id, node=node)
            for call in node.calls:
                home[call] = place
            for length in range(1, len(node.group) + 1):
                path = node.group[:length]
                costs[path] = costs[path] + node.cost
        for src, dst, edge in links(self.report.graph, nodes, home):
            graph.add_edge(nodes[src].id, nodes[dst].id, edge=edge)
        groups = {path: _group(path, around.get(path), cost) for path, cost in costs.items()}
        phases = tuple(group.name for group in groups.values() if group.is_phase)
        closed = max((item for item in cut if item.kind == "module"), key=self._priority, default=None)
        return Picture(graph, groups, phases, grain, len(joins), closed.path if closed else "")

    def _node(self, item: Item, members: Mapping[int, Sequence[int]], boxed: bool) -> PictureNode:
        report = self.report
        own = item.calls
        calls = sorted(call for root in own for call in members[root])
        cost = costs_of(report, calls)
        kind = _KINDS[item.kind]
        group = tuple(_element(box) for box in _boxes(item))
        if item.kind == "phase" and boxed:
            group = (_element(item),)
        return PictureNode(
            id=f"n{_lead(item)}",
            kind=kind,
            label=_title(item),
            lead=_lead(item),
            calls=calls,
            group=group,
            cost=cost,
            bound=shared_bound((report.bounds[call] for call in own), cost),
            repeats=item.count,
            copies=item.copies,
            cls=item.cls,
            inside=() if kind == "op" and len(calls) == 1 else (*_children(item), *self._inside(calls)),
            differs=item.differs,
        )

    def _inside(self, calls: Sequence[int]) -> tuple[str, ...]:
        """Ops of a folded node, by wall time."""
        walls: dict[str, float] = defaultdict(float)
        counts: dict[str, int] = defaultdict(int)
        for call in calls:
            op = self.report.graph.facts(call).label
            walls[op] += self._walls[call]
            counts[op] += 1
        ranked = sorted(walls, key=lambda op: (-walls[op], -counts[op], op))
        return tuple(f"{op} x{counts[op]:,}" for op in ranked)


def _boxes(item: Item) -> list[Item]:
    """The items around an item from the outermost on, without the whole run."""
    found = []
    above = item.parent
    while above is not None and above.parent is not None:
        found.append(above)
        above = above.parent
    return found[::-1]


def _path(item: Item) -> tuple[str, ...]:
    return (*map(_element, _boxes(item)), _element(item))


def _element(item: Item) -> str:
    """What tells an item from its neighbours."""
    return PHASE_NAMES[item.name] if item.kind == "phase" else f"{item.name} from %{_lead(item)}"


def _lead(item: Item) -> int:
    """The call that stands for an item."""
    node = item.nodes[0]
    while node.children:
        node = node.children[0]
    return node.call


def _title(item: Item) -> str:
    if item.kind == "phase":
        return PHASE_NAMES.get(item.name, item.name)
    return item.name or item.kind


def _children(item: Item) -> tuple[str, ...]:
    """Modules directly inside a folded one that come again, by class: ``Block x12``."""
    counts: dict[str, int] = defaultdict(int)
    for child in item.children:
        if child.cls:
            counts[child.cls] += child.count
    return tuple(f"{cls} x{count:,}" for cls, count in counts.items() if count > 1)


def _group(path: tuple[str, ...], item: Item | None, cost: CostSum) -> Group:
    """The box of an open item; of a phase that is one node in it, too."""
    if item is None or item.kind == "phase":
        return Group(path, path[-1], cost, is_phase=True)
    return Group(path, _title(item), cost, item.cls, item.count, item.kind == "module", item.differs)
