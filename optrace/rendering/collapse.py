"""Folding: which calls a picture shows one by one, and which together with their costs summed.

From the finest level to the coarsest: every call; every call that launches something; repeats (the same
op, from the same line, in the same module) together; modules from the deepest up; then source lines,
functions and phases. Each level is one pass over the calls, and sums are kept: every call belongs to
exactly one node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import networkx as nx

from optrace.graph import Frame
from optrace.rendering.links import links
from optrace.rendering.options import DrawOptions
from optrace.rendering.picture import Group, Level, NodeKind, Picture, PictureNode
from optrace.rendering.places import Key, companions, places
from optrace.rendering.sums import CostSum, costs_of, shared_bound
from optrace.report import Report


class Folder:
    """A report's calls by place, ready to be drawn at any level."""

    def __init__(self, report: Report) -> None:
        self.report = report
        graph = report.graph
        self._places, self._place_of = places(graph)
        self._companions = companions(report)
        self._joined_places = {
            (place, self._place_of[companion])
            for place, companion in zip(self._place_of, self._companions, strict=True)
        }
        self._classes = {call.path: call.cls for call in graph.module_calls.rows}
        self.deepest = max((len(place.module) for place in self._places), default=0)

    def levels(self, options: DrawOptions) -> list[tuple[Level, int]]:
        """Every level from the finest that ``options`` allow to the coarsest, with its number of nodes."""
        asked = options.depth
        top = self.deepest if asked is None else min(asked, self.deepest)
        levels = [Level("call", asked), Level("launch", asked), Level("op", asked)]
        levels += [Level("op", depth) for depth in range(top - 1, -1, -1)]
        levels += [Level("line", 0), Level("function", 0), Level("phase", 0)]
        return [(level, self._count(level)) for level in levels]

    def picture(self, level: Level) -> Picture:
        """The graph to draw at one level."""
        members: dict[Key, list[int]] = defaultdict(list)
        for call, key in enumerate(self._node_keys(level)):
            members[key].append(call)
        nodes = sorted(
            (self._node(key[0], calls, level) for key, calls in members.items()), key=lambda n: n.lead
        )
        home = [0] * len(self._place_of)
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
        groups = {path: self._group(path, cost) for path, cost in costs.items()}
        phases = tuple(group.name for group in groups.values() if group.is_phase)
        return Picture(graph, groups, phases, level, len(self._place_of))

    def _count(self, level: Level) -> int:
        """How many nodes a level has: by call where calls are told apart, else by place."""
        if level.grain in ("call", "launch"):
            return len(set(self._node_keys(level)))
        keys = [place.key(level) for place in self._places]
        return len(
            {keys[joined] if keys[own][0] == "op" else keys[own] for own, joined in self._joined_places}
        )

    def _node_keys(self, level: Level) -> Iterable[Key]:
        """Which node each call belongs to."""
        keys = [place.key(level) for place in self._places]
        each_call = level.grain in ("call", "launch")
        for call, companion in enumerate(self._companions):
            stands_for = call
            kind, key = keys[self._place_of[call]]
            if kind == "op" and level.grain != "call":
                stands_for = companion
                kind, key = keys[self._place_of[companion]]
            yield (kind, (stands_for,)) if kind == "op" and each_call else (kind, key)

    def _node(self, kind: NodeKind, calls: list[int], level: Level) -> PictureNode:
        report = self.report
        own = [call for call in calls if self._companions[call] == call] if len(calls) > 1 else calls
        lead = own[0] if own else calls[0]
        place = self._places[self._place_of[lead]]
        cost = costs_of(report, calls)
        bound = shared_bound((report.bounds[call] for call in own or calls), cost)
        phase = (place.phase,) if place.phase else ()
        inside = self._inside(calls) if kind != "op" or len(calls) > 1 else ()
        line = place.line
        name, group, repeats, cls = "", phase + place.module, 1, ""
        if kind == "op":
            name, repeats = report.graph.facts(lead).label, len(own or calls)
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
        return PictureNode(f"n{lead}", kind, name, lead, calls, group, cost, bound, repeats, cls, inside)

    def _group(self, path: tuple[str, ...], cost: CostSum) -> Group:
        with_phases = bool(self._places[0].phase)
        module = path[1:] if with_phases else path
        return Group(
            path, path[-1], self._classes.get(".".join(module), ""), cost, with_phases and len(path) == 1
        )

    def _inside(self, calls: list[int]) -> tuple[str, ...]:
        """Ops of a folded node, by wall time."""
        walls: dict[str, float] = defaultdict(float)
        counts: dict[str, int] = defaultdict(int)
        for call in calls:
            op = self.report.graph.facts(call).label
            walls[op] += self.report.timeline.spans[call].wall_us
            counts[op] += 1
        ranked = sorted(walls, key=lambda op: (-walls[op], -counts[op], op))
        return tuple(f"{op} x{counts[op]:,}" for op in ranked)

    def _children(self, path: tuple[str, ...], calls: list[int]) -> tuple[str, ...]:
        """Modules directly inside a folded one, by class: ``Block x12``."""
        modules = {self._places[self._place_of[call]].module for call in calls}
        children = {module[: len(path) + 1] for module in modules if len(module) > len(path)}
        classes: dict[str, int] = defaultdict(int)
        for child in sorted(children):
            classes[self._classes.get(".".join(child), "")] += 1
        return tuple(f"{cls} x{count}" for cls, count in classes.items() if cls and count > 1)

    def _module_calls(self, path: tuple[str, ...], calls: list[int]) -> int:
        """How often the module at ``path`` was called, as far as its own ops tell."""
        graph = self.report.graph
        rows = {graph.module_of(call) for call in calls} - {-1}
        own = {graph.module_calls[row].call for row in rows if graph.module_calls[row].path == ".".join(path)}
        return max(1, len(own))


def _file_name(frame: Frame) -> str:
    return frame.file.replace("\\", "/").rpartition("/")[2]


def _short(frame: Frame) -> str:
    return f"{_file_name(frame)}:{frame.line}"
