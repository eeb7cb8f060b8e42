"""Where calls stand: phase, module, source line. What folding goes by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from optrace.graph import Frame, OpGraph, Phase
from optrace.rendering.picture import Level, NodeKind
from optrace.report import Report

PHASE_NAMES: dict[Phase, str] = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "other": "set-up",
}

#: What nodes are told apart by.
Key: TypeAlias = tuple[NodeKind, tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Place:
    """A phase (empty where the run has only one), a module's path, a source line and an op."""

    phase: str
    module: tuple[str, ...]
    line: Frame | None
    op: str

    def key(self, level: Level) -> Key:
        """The node that calls of this place belong to, repeats taken together."""
        if level.grain == "phase":
            return "phase", (self.phase,)
        if level.depth is not None and len(self.module) > level.depth:
            return "module", (self.phase, self.module[: level.depth + 1])
        if level.grain == "line" and self.line:
            return "line", (self.phase, self.module, self.line.file, self.line.line)
        if level.grain == "function" and self.line:
            return "function", (self.phase, self.module, self.line.file, self.line.function)
        return "op", (self.phase, self.module, self.line, self.op)


def places(graph: OpGraph) -> tuple[list[Place], list[int]]:
    """The distinct places of a graph's calls, and the place of each call."""
    phases = {graph.phase(call) for call in range(len(graph))}
    lines = [source.line for source in graph.sources.rows]
    modules = [tuple(call.path.split(".")) for call in graph.module_calls.rows]
    rows: dict[Place, int] = {}
    by_columns: dict[tuple[Phase, int, int, str], int] = {}
    place_of: list[int] = []
    for call in range(len(graph)):
        columns = (graph.phase(call), graph.module_of(call), graph.source_of(call), graph.facts(call).name)
        row = by_columns.get(columns)
        if row is None:
            phase, module, source, op = columns
            place = Place(
                PHASE_NAMES[phase] if len(phases) > 1 else "",
                modules[module] if module >= 0 else (),
                lines[source],
                op,
            )
            row = by_columns[columns] = rows.setdefault(place, len(rows))
        place_of.append(row)
    return list(rows), place_of


def companions(report: Report) -> list[int]:
    """For each call that launches nothing, the call of its phase that it is drawn with when views are not
    drawn: the one that made what it views, else the first that uses it. All others stand by themselves."""
    graph = report.graph
    free = [bound == "host" for bound in report.bounds]
    joins = list(range(len(graph)))
    # Edges come by later call, so what a call joins is settled before anything joins the call itself.
    for edge in graph.edges:
        call = edge.dst
        if free[call] and joins[call] == call and edge.kind == "data" and _same_phase(graph, edge.src, call):
            joins[call] = joins[edge.src]
    # What is left starts from outside: it joins the first user of itself or of a view of it.
    users: dict[int, int] = {}
    for edge in graph.edges:
        root = joins[edge.src]
        if (
            free[root]
            and joins[edge.dst] != root
            and edge.kind == "data"
            and _same_phase(graph, root, edge.dst)
        ):
            users.setdefault(root, edge.dst)
    settled: dict[int, int] = {}
    for root in sorted(users, reverse=True):
        user = joins[users[root]]
        settled[root] = settled.get(user, user)
    return [settled.get(root, root) for root in joins]


def _same_phase(graph: OpGraph, one: int, other: int) -> bool:
    return graph.phase(one) == graph.phase(other)
