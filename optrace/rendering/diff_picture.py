"""Two runs as one picture: what came, went, moved or changed, between boxes of what stayed the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import graphviz

from optrace import units
from optrace.diagnosis.compare import Change, ChangeKind, Comparison, folded
from optrace.rendering.figures import FIGURES, difference, figure, relative
from optrace.rendering.markup import cell, font, plain, shortened, table
from optrace.rendering.palette import BOX_BORDER, BOX_FILLS, EDGE, INK, QUIET
from optrace.report import Report

#: Changes drawn as nodes of their own, the largest first; places for what stayed the same are as many again at most.
MOST_CHANGES = 150


@dataclass(frozen=True, slots=True)
class _Paint:
    fill: str
    text: str
    border: str
    sign: str
    meaning: str


#: From the same colour-blind-safe set as the op graph's; each also carries its sign.
PAINT: Mapping[ChangeKind, _Paint] = {
    "came": _Paint("#0e8462", "#ffffff", "#064a34", "+", "came"),
    "went": _Paint("#93370d", "#ffffff", "#511b03", "-", "went"),
    "moved": _Paint("#56b4e9", "#10151a", "#1c5f88", ">", "moved"),
    "changed": _Paint(
        "#f7c65b", "#1a1a1a", "#8a6100", "~", "same op and shape, other dtype, strides or launches"
    ),
}


def dot_source(
    comparison: Comparison,
    before: Report,
    after: Report,
    before_title: str,
    after_title: str,
    most: int = MOST_CHANGES,
) -> str:
    """The picture in DOT, with ``most`` changes as nodes of their own."""
    shown = comparison.changes[:most]
    scene = _Scene(comparison, shown, before, after, most)
    dot = graphviz.Digraph(
        "optrace_diff",
        graph_attr={
            "label": _legend(comparison, before_title, after_title, len(comparison.changes) - len(shown)),
            "labelloc": "t",
            "labeljust": "l",
            "fontname": "Helvetica",
            "ranksep": "0.3",
            "nodesep": "0.2",
            "pad": "0.3",
            "bgcolor": "white",
            "tooltip": " ",
        },
        node_attr={"fontname": "Helvetica", "fontsize": "10", "shape": "box", "style": "rounded,filled"},
        edge_attr={"fontname": "Helvetica", "color": EDGE, "arrowsize": "0.55"},
    )
    for number, (place, nodes) in enumerate(scene.places().items()):
        phase, module = place
        with dot.subgraph(name=f"cluster_{number}") as box:
            title = f"{module or 'outside of modules'}, {phase}"
            box.attr(
                label=f"<{font(shortened(title, 90), size=10, color=QUIET)}>",
                style="filled,rounded",
                fillcolor=BOX_FILLS[0],
                color=BOX_BORDER,
                labeljust="l",
                tooltip=plain(title),
            )
            for node in nodes:
                box.node(node, **scene.look(node))
    for src, dst in scene.edges():
        dot.edge(src, dst, tooltip=" ")
    return str(dot.source)


class _Scene:
    """Which node each call of either run belongs to."""

    def __init__(
        self,
        comparison: Comparison,
        shown: tuple[Change, ...],
        before: Report,
        after: Report,
        most_places: int,
    ) -> None:
        self._before, self._after = before, after
        self._changes = {f"c{number}": change for number, change in enumerate(shown)}
        self._of_before: dict[int, str] = {}
        self._of_after: dict[int, str] = {}
        for node, change in self._changes.items():
            self._of_before.update(dict.fromkeys(change.before, node))
            self._of_after.update(dict.fromkeys(change.after, node))
        self._same: dict[tuple[str, str], list[int]] = {}
        pairs = list(comparison.same)
        for change in comparison.changes[len(shown) :]:
            # Too small to draw: with what stayed the same in its module.
            pairs += zip(change.before, change.after, strict=False)
        depth = self._depth({after_call for _, after_call in pairs}, most_places)
        names: dict[tuple[str, str], str] = {}
        for before_call, after_call in pairs:
            place = self._place(after_call, depth)
            node = names.setdefault(place, f"s{len(names)}")
            self._same.setdefault(place, []).append(after_call)
            self._of_before[before_call] = self._of_after[after_call] = node
        self._same_places = {node: place for place, node in names.items()}

    def places(self) -> Mapping[tuple[str, str], list[str]]:
        """The boxes, and the nodes in each."""
        boxes: dict[tuple[str, str], list[str]] = defaultdict(list)
        for node, place in self._same_places.items():
            boxes[place].append(node)
        for node, change in self._changes.items():
            boxes[change.phase, change.module].append(node)
        return boxes

    def look(self, node: str) -> dict[str, str]:
        """DOT attributes of a node."""
        change = self._changes.get(node)
        if change is None:
            calls = self._same[self._same_places[node]]
            label = font(f"{units.counted(len(calls), 'call')} as before", size=9, color=QUIET)
            ops = sorted({self._after.graph.facts(call).label for call in calls})
            return {
                "label": f"<{label}>",
                "fillcolor": "#ffffff",
                "color": BOX_BORDER,
                "tooltip": plain(", ".join(ops)),
            }
        paint = PAINT[change.kind]
        times = f" x{change.calls:,}" if change.calls > 1 else ""
        what = f"{paint.sign} {change.op}{times}"
        where = f"{change.kind}{f' from {change.moved_from}' if change.moved_from else ''}  {change.shape}"
        look = {
            "color": paint.border,
            "tooltip": plain(self._tooltip(change)),
            "style": "rounded,filled,dashed" if change.kind == "went" else "rounded,filled",
        }
        if not change.costs:
            label = font(shortened(f"{what} {where}"), size=8, color=paint.border)
            return look | {
                "label": f"<{label}>",
                "fillcolor": "#ffffff",
                "height": "0",
                "margin": "0.05,0.03",
            }
        lines = [
            font(shortened(what), size=11, bold=True),
            font(where, size=8),
            font(
                f"{difference('wall_us', change.wall_us)}, launches {difference('launches', change.launches)}, "
                f"HBM {difference('hbm_bytes', change.hbm_bytes)}",
                size=8,
            ),
        ]
        label = table(cell(line, ALIGN="CENTER") for line in lines)
        return look | {"label": f"<{label}>", "fillcolor": paint.fill, "fontcolor": paint.text}

    def edges(self) -> list[tuple[str, str]]:
        """Dependences of the second run, and those of the first that calls which went had."""
        found: dict[tuple[str, str], None] = {}
        for edge in self._after.graph.edges:
            self._add(found, self._of_after.get(edge.src), self._of_after.get(edge.dst))
        went = {node for node, change in self._changes.items() if change.kind == "went"}
        for edge in self._before.graph.edges:
            src, dst = self._of_before.get(edge.src), self._of_before.get(edge.dst)
            if src in went or dst in went:
                self._add(found, src, dst)
        return list(found)

    @staticmethod
    def _add(found: dict[tuple[str, str], None], src: str | None, dst: str | None) -> None:
        if src is not None and dst is not None and src != dst:
            found[src, dst] = None

    def _place(self, call: int, depth: int) -> tuple[str, str]:
        module = self._after.graph.module_call(call)
        path = folded(module.path) if module else ""
        return self._after.graph.phase(call), ".".join(path.split(".")[:depth])

    def _depth(self, calls: set[int], most_places: int) -> int:
        """How many levels of modules can be told apart without too many boxes."""
        deepest = max((row.path.count(".") + 1 for row in self._after.graph.module_calls.rows), default=1)
        for depth in range(deepest, 1, -1):
            if len({self._place(call, depth) for call in calls}) <= most_places:
                return depth
        return 1

    def _tooltip(self, change: Change) -> str:
        report, calls = (self._after, change.after) if change.after else (self._before, change.before)
        lines = sorted({str(line) for call in calls if (line := report.graph.source(call).line)})
        return "\n".join(
            [f"{change.op} {change.shape} in {change.module or 'no module'}, {change.phase}", *lines[:8]]
        )


def _legend(comparison: Comparison, before_title: str, after_title: str, hidden: int) -> str:
    """Titles, the scoreboard's change, and what the colours say."""
    before, after = comparison.before, comparison.after
    rows = [
        cell(font(f"{before_title}  to  {after_title}", size=18, bold=True), COLSPAN="5"),
        "".join(
            cell(font(text, size=9, color=QUIET)) for text in ("", before_title, after_title, "change", "")
        ),
    ]
    for name, row in FIGURES.items():
        texts = (
            row.label,
            f"   {figure(before, name)}",
            f"   {figure(after, name)}",
            f"   {difference(name, after.value(name) - before.value(name))}",
            f"   {relative(before.value(name), after.value(name))}",
        )
        rows.append("".join(cell(font(text, size=10, color=INK)) for text in texts))
    kinds = {change.kind for change in comparison.changes}
    for kind, paint in PAINT.items():
        if kind in kinds:
            rows.append(
                cell(font(f" {paint.sign} ", size=10, color=paint.text), BGCOLOR=paint.fill)
                + cell(font(f"  {paint.meaning}", size=10, color=QUIET), COLSPAN="4")
            )
    if hidden > 0:
        rows.append(
            cell(font(f"{hidden:,} smaller changes are not drawn", size=10, color=QUIET), COLSPAN="5")
        )
    return f"<{table(rows, CELLPADDING='2')}>"
