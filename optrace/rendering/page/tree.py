"""The folded run as the page's data: one row an item, each before those inside it.

It is the tree that pictures fold by (``optrace.graph.folding``); the page opens it level by level.
"""

from __future__ import annotations

from typing import Any

from optrace.graph.folding import Item, fold
from optrace.rendering.page.columns import Packer, Texts
from optrace.rendering.places import PHASE_NAMES, companions
from optrace.report import Report

#: What an item is, by number.
_KINDS = ("phase", "module", "call", "loop", "stretch")


def tree(report: Report, pack: Packer) -> dict[str, Any]:
    """``joins``: the call that each call is drawn with, or -1. Of each item: how many items are ``inside`` it, how
    often it is there in the item around it (``count``) and in all (``copies``). ``calls`` holds those of items that
    are calls, one item's after the other's, copy by copy."""
    joins = _drawn_with(report)
    texts = Texts()
    items: list[Item] = []
    waiting = [fold(report.graph, joins)]
    while waiting:
        item = waiting.pop()
        items.append(item)
        waiting += item.children[::-1]
    names = [texts.add(PHASE_NAMES.get(item.name, item.name)) for item in items]
    classes = [texts.add(item.cls) for item in items]
    differs = [texts.add(item.differs) for item in items]
    return {
        "joins": pack.add("Int32", joins),
        "kinds": _KINDS,
        "texts": texts.rows,
        "kind": pack.add("Uint8", (_KINDS.index(item.kind) for item in items)),
        "name": pack.add("Uint32", names),
        "cls": pack.add("Uint32", classes),
        "differs": pack.add("Uint32", differs),
        "inside": pack.add("Uint32", (len(item.children) for item in items)),
        "count": pack.add("Uint32", (item.count for item in items)),
        "copies": pack.add("Uint32", (item.copies for item in items)),
        "calls": pack.add(
            "Uint32", (node.call for item in items if item.kind == "call" for node in item.nodes)
        ),
    }


def _drawn_with(report: Report) -> list[int]:
    """Calls that launch nothing are drawn with others or not at all, unless the run has no other."""
    joins = companions(report)
    shown = [bound != "host" for bound in report.bounds]
    if not any(shown):
        return list(range(len(joins)))
    return [root if shown[root] else -1 for root in joins]
