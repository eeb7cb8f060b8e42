"""The picture in DOT: nodes coloured by what bounds them and as large as their share of the wall clock.

Written with the ``graphviz`` package; no layout program is needed. The legend is the graph's own label, so
that it takes no part in the layout.
"""

from __future__ import annotations

import math

import graphviz

from optrace.rendering import units
from optrace.rendering.boxes import Box, nest
from optrace.rendering.collapse import Folder, Level, Picture, PictureEdge, PictureNode
from optrace.rendering.details import node_details, tensor_text
from optrace.rendering.legend import legend
from optrace.rendering.markup import font, plain
from optrace.rendering.options import DrawOptions, Rendered
from optrace.rendering.palette import BOX_BORDER, BOX_FILLS, EDGE, INK, ORDER_EDGE, PAINT, QUIET
from optrace.report import Report

#: Measured alike by layout programs (as Arial or its twins Arimo and Liberation Sans), known to browsers.
FONT = "Helvetica"


def render(report: Report, options: DrawOptions) -> Rendered:
    """The DOT text of a report at the finest level that fits."""
    folder = Folder(report)
    levels = folder.levels(options)
    level = next((level for level, nodes in levels if nodes <= options.node_limit), levels[-1][0])
    source, notes = draw(folder, level, levels)
    return Rendered(source.encode(), notes)


def draw(
    folder: Folder, level: Level, levels: list[tuple[Level, int]], notes: tuple[str, ...] = ()
) -> tuple[str, tuple[str, ...]]:
    """DOT text at one level, and what its reader should be told; ``notes`` come first."""
    picture = folder.picture(level)
    told = (*notes, *fold_note(picture, folder.deepest, levels))
    return dot_source(folder.report, picture, told), told


def fold_note(picture: Picture, deepest: int, levels: list[tuple[Level, int]]) -> tuple[str, ...]:
    """What is folded, and how to open it up."""
    if not picture.folded:
        return ()
    level = picture.level
    finer = min((nodes for _, nodes in levels if nodes > len(picture.graph)), default=picture.calls)
    ways = [f"--max-nodes {finer}"]
    if level.depth is not None and level.depth + 1 < deepest:
        ways.insert(0, f"--depth {level.depth + 1}")
    return (
        f"{units.counted(picture.calls, 'call')} drawn as {units.counted(len(picture.graph), 'node')}: {level}. "
        f"To open it up: {' or '.join(ways)}.",
    )


def dot_source(report: Report, picture: Picture, notes: tuple[str, ...]) -> str:
    """The picture with its legend."""
    dot = graphviz.Digraph(
        "optrace",
        graph_attr={
            "label": legend(report, notes),
            "labelloc": "t",
            "labeljust": "l",
            "fontname": FONT,
            "ranksep": "0.28",
            "nodesep": "0.22",
            "pad": "0.3",
            "bgcolor": "white",
            "tooltip": " ",
        },
        node_attr={"fontname": FONT, "fontsize": "10", "shape": "box", "style": "rounded,filled"},
        edge_attr={"fontname": FONT, "color": EDGE, "arrowsize": "0.55"},
    )
    _add_box(dot, report, nest(picture), depth=0)
    order = {name: place for place, name in enumerate(picture.graph)}
    for src, dst, data in picture.graph.edges(data=True):
        dot.edge(src, dst, **_edge_look(report, data["edge"], forward=order[src] < order[dst]))
    return str(dot.source)


def _add_box(dot: graphviz.Digraph, report: Report, box: Box, depth: int) -> None:
    for node in box.nodes:
        dot.node(node.id, **_node_look(report, node, box.captions.get(node.id, "")))
    for number, inner in enumerate(box.boxes):
        with dot.subgraph(name=f"{dot.name if depth else 'cluster'}_{number}") as cluster:
            cluster.attr(**_box_look(report, inner, depth))
            _add_box(cluster, report, inner, depth + 1)


def _box_look(report: Report, box: Box, depth: int) -> dict[str, str]:
    wall = report.timeline.wall_us
    time = f"  {units.predicted_us(box.wall_us)}" if box.wall_us else ""
    part = f", {units.share(box.wall_us / wall)}" if box.wall_us and wall else ""
    title = font(box.title, size=13 if box.is_phase else 11, bold=True, color=INK)
    rest = font(f"{f' {box.cls}' if box.cls else ''}{time}{part}", size=10, color=QUIET)
    return {
        "label": f"<{title}{rest}>",
        "labeljust": "l",
        "labelloc": "t",
        "style": "rounded,filled",
        "fillcolor": BOX_FILLS[depth % len(BOX_FILLS)],
        "color": BOX_BORDER,
        "penwidth": "1.6" if box.is_phase else "0.8",
        "margin": "10",
        "tooltip": plain(f"{box.title} {box.cls}".rstrip()),
    }


def _node_look(report: Report, node: PictureNode, caption: str) -> dict[str, str]:
    tooltip = plain("\n".join(node_details(report, node)))
    if node.kind == "op" and node.bound == "host":
        times = f" x{node.repeats:,}" if node.repeats > 1 else ""
        label = font(f"{node.label}{times}{_output_text(report, node)}", size=8, color=QUIET)
        return {
            "label": f"<{label}>",
            "tooltip": tooltip,
            "shape": "plaintext",
            "style": "",
            "margin": "0.03,0.01",
            "width": "0",
            "height": "0",
        }
    paint = PAINT[node.bound]
    wall = report.timeline.wall_us
    share = node.cost.wall_us / wall if wall else 0.0
    size = math.sqrt(min(1.0, share))
    look = {
        "label": f"<{_label(report, node, share, caption)}>",
        "tooltip": tooltip,
        "fillcolor": paint.fill,
        "fontcolor": paint.text,
        "color": paint.border,
        "penwidth": f"{0.8 + 3.2 * size:.2f}",
        "width": f"{0.7 + 2.0 * size:.2f}",
        "height": f"{0.3 + 1.3 * size:.2f}",
        "margin": f"{0.1 + 0.06 * size:.3f},{0.045 + 0.06 * size:.3f}",
    }
    if len(node.calls) > 1:
        look["peripheries"] = "2"
    if node.cost.guesses or node.cost.unpriced:
        look["style"] = "rounded,filled,dashed"
    return look


def _label(report: Report, node: PictureNode, share: float, caption: str) -> str:
    """Name, output, time and part of the wall clock, what bounds it and its intensity."""
    size = 10 + 9 * math.sqrt(min(1.0, share))
    small = max(8.0, 0.66 * size)
    name = f"{node.label} x{node.repeats:,}" if node.repeats > 1 else node.label
    if node.cls:
        name = f"{node.cls} {name}"
    cost = node.cost
    time = units.predicted_us(cost.wall_us) if cost.unpriced < cost.calls else units.UNKNOWN
    unsure = f" {units.UNKNOWN}" if cost.guesses and time != units.UNKNOWN else ""
    intensity = (
        "" if cost.intensity is None and not cost.uncounted_flops else f", {units.intensity(cost.intensity)}"
    )
    lines = [
        font(caption, size=small, color=PAINT[node.bound].text) if caption else "",
        font(name, size=size, bold=True),
        font(_contents_text(report, node), size=small),
        font(f"{time}{unsure}  {units.share(share)}", size=small),
        font(f"{node.bound}{intensity}", size=small),
    ]
    return "<BR/>".join(line for line in lines if line)


def _contents_text(report: Report, node: PictureNode) -> str:
    """The output of an op; what a folded node holds."""
    if node.kind == "op":
        return _output_text(report, node).strip()
    counts = (
        f"{units.counted(node.cost.calls, 'call')}, {units.counted(node.cost.launches, 'launch', 'launches')}"
    )
    return f"{', '.join(node.inside[:2])}\n{counts}" if node.inside else counts


def _output_text(report: Report, node: PictureNode) -> str:
    """Dtype and shape of what the first call gives, and how many more tensors there are."""
    outputs = report.graph.outputs(node.call) or report.graph.operands(node.call)
    if not outputs:
        return ""
    more = f" +{len(outputs) - 1}" if len(outputs) > 1 else ""
    return f" {units.tensor(report.graph.tensor(outputs[0]))}{more}"


def _edge_look(report: Report, edge: PictureEdge, *, forward: bool) -> dict[str, str]:
    shown = [tensor_text(report, report.graph.tensor(tensor)) for tensor in edge.tensors[:8]]
    if len(edge.tensors) > len(shown):
        shown.append(f"... {units.counted(len(edge.tensors), 'tensor')}, {units.moved(edge.nbytes)}")
    look = {"tooltip": plain("\n".join([*(["order only:"] if edge.kind == "order" else []), *shown]))}
    if edge.kind == "order":
        look |= {
            "style": "dashed",
            "color": ORDER_EDGE,
            "penwidth": "0.7",
            "arrowhead": "open",
            "constraint": "false",
        }
    else:
        look["penwidth"] = f"{edge_width(edge.nbytes):.2f}"
    if not forward:
        # A loop folded into one node: its way back must not turn the ranks around.
        look["constraint"] = "false"
    return look


def edge_width(nbytes: int) -> float:
    """Points: 0.6 up to a kilobyte, then 0.55 more for each factor of ten (1 MB: 2.3, 1 GB: 3.9)."""
    return 0.6 + 0.55 * max(0.0, math.log10(max(1, nbytes) / 1e3))
