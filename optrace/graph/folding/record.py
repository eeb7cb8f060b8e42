"""The repeats of a run as plain data, for ``graph.json`` and whoever folds or unfolds by it."""

from __future__ import annotations

from typing import Any

from optrace.graph.folding.items import Item, fold
from optrace.graph.folding.tree import calls_of
from optrace.graph.opgraph import OpGraph


def folding_record(graph: OpGraph) -> list[dict[str, Any]]:
    """Items that stand for several neighbours, and such as differ from them, outermost first.

    ``copies`` holds the calls of each copy; of an item ``inside`` another (its place in this list) those of the other's
    first copy.
    """
    found: list[dict[str, Any]] = []
    waiting: list[tuple[Item, int | None, str]] = [(fold(graph), None, "")]
    while waiting:
        item, inside, phase = waiting.pop()
        phase = item.name if item.kind == "phase" else phase
        if item.count > 1 or item.differs:
            found.append(
                {
                    "kind": item.kind,
                    "name": item.name,
                    "module": item.path or None,
                    "class": item.cls,
                    "phase": phase,
                    "count": item.count,
                    "inside": inside,
                    "alike": item.alike,
                    "differs": item.differs,
                    "copies": [calls_of([node]) for node in item.nodes[: item.count]],
                }
            )
            inside = len(found) - 1
        waiting += [(child, inside, phase) for child in reversed(item.children)]
    return found
