"""Where calls are drawn: under which phase, and with which other call."""

from __future__ import annotations

from collections.abc import Mapping

from optrace.graph import OpGraph
from optrace.report import Report

PHASE_NAMES: Mapping[str, str] = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "other": "set-up",
}


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
