"""How boxes, nodes and edges of the picture look: DOT attributes from figures.

A node's area, border and letters grow with the square root of its share of the wall clock, an edge's width
with the logarithm of its bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from optrace import units
from optrace.rendering.boxes import Box
from optrace.rendering.details import node_details, tensor_text
from optrace.rendering.markup import cell, font, plain, shortened, shortened_end, table
from optrace.rendering.palette import BOX_BORDER, BOX_FILLS, INK, ORDER_EDGE, PAINT, QUIET
from optrace.rendering.phases import Passing
from optrace.rendering.picture import PictureEdge, PictureNode
from optrace.rendering.sums import CostSum
from optrace.report import Report


def head_look(box: Box, passed: Sequence[Passing]) -> dict[str, str]:
    """The head of a phase: its counts, and what it hands to other phases."""
    cost = box.cost
    lines = [
        f"{units.counted(cost.calls, 'call')}, {units.counted(cost.launches, 'launch', 'launches')}, "
        f"{units.moved(cost.hbm_bytes)} through HBM",
        *(
            f"hands {units.counted(passing.tensors, 'tensor')} of {units.moved(passing.nbytes)} to {passing.dst}"
            for passing in passed
        ),
    ]
    label = table(cell(font(line, size=10, color=QUIET), ALIGN="CENTER") for line in lines)
    return {"label": f"<{label}>", "style": "", "shape": "plaintext", "tooltip": plain("\n".join(lines))}


def box_look(report: Report, box: Box, *, depth: int) -> dict[str, str]:
    """The box of a phase or a module."""
    wall = report.timeline.wall_us
    time = f"  {units.predicted_us(box.cost.wall_us)}" if box.cost.wall_us else ""
    part = f", {units.share(box.cost.wall_us / wall)}" if box.cost.wall_us and wall else ""
    return {
        "label": f"<{box_title(box, font(f'{time}{part}', size=10, color=QUIET))}>",
        "labeljust": "l",
        "labelloc": "t",
        "style": "rounded,filled",
        "fillcolor": BOX_FILLS[depth % len(BOX_FILLS)],
        "color": BOX_BORDER,
        "penwidth": "1.6" if box.is_phase else "0.8",
        "margin": "10",
        "tooltip": plain("\n".join(part for part in (box.name, box.differs) if part)),
    }


def box_title(box: Box, figures: str) -> str:
    """Markup of a box's head: title, count, class, ``figures`` (markup), and below it what sets it apart."""
    title = f"{box.title}{box.times}"
    differs = font(shortened_end(box.differs), size=9, color=QUIET)
    return (
        font(shortened(title), size=13 if box.is_phase else 11, bold=True, color=INK)
        + font(shortened(box.name.removeprefix(title)), size=10, color=QUIET)
        + figures
        + (f'<BR ALIGN="LEFT"/>{differs}' if differs else "")
    )


def node_look(report: Report, node: PictureNode, caption: str) -> dict[str, str]:
    """A node: text only where nothing is launched; dashed where the price is a guess or not known."""
    tooltip = plain("\n".join(node_details(report, node)))
    if node.is_quiet:
        times = f" x{node.repeats:,}" if node.repeats > 1 else ""
        label = font(f"{node.label}{times} {output_text(report, node)}", size=8, color=QUIET)
        return {
            "label": f"<{label}>",
            "tooltip": tooltip,
            "shape": "plaintext",
            "style": "",
            "margin": "0.05,0.03",
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
        "width": f"{0.7 + 1.7 * size:.2f}",
        "height": f"{0.3 + 1.0 * size:.2f}",
        "margin": f"{0.1 + 0.06 * size:.3f},{0.045 + 0.06 * size:.3f}",
    }
    if node.repeats > 1 or node.kind != "op":
        look["peripheries"] = "2"
    if node.cost.guesses or node.cost.unpriced:
        look["style"] = "rounded,filled,dashed"
    return look


def _label(report: Report, node: PictureNode, share: float, caption: str) -> str:
    """Name, output, time and part of the wall clock, what bounds it and its intensity."""
    size = 10 + 10 * math.sqrt(min(1.0, share))
    small = max(8.0, 0.64 * size)
    name = f"{node.label} x{node.repeats:,}" if node.repeats > 1 else node.label
    if node.cls not in ("", node.label):
        name = f"{node.cls} {name}"
    cost = node.cost
    time = units.predicted_us(cost.wall_us) if cost.unpriced < cost.calls else units.UNKNOWN
    unsure = f" {units.UNKNOWN}" if cost.guesses and time != units.UNKNOWN else ""
    lines = [
        font(shortened(caption), size=small),
        font(shortened(name), size=size, bold=True),
        *(font(shortened(line), size=small) for line in _contents_lines(report, node)),
        font(f"{time}{unsure}  {units.share(share)}", size=small),
        font(f"{node.bound}, {_intensity_text(cost)}", size=small),
        font(shortened_end(node.differs), size=small),
    ]
    return table(cell(line, ALIGN="CENTER") for line in lines if line)


def _intensity_text(cost: CostSum) -> str:
    if not cost.hbm_bytes and not cost.unpriced:
        return "no HBM traffic"
    return units.intensity(cost.intensity)


def _contents_lines(report: Report, node: PictureNode) -> Iterator[str]:
    """The output of an op; what a folded node holds."""
    if node.kind == "op":
        yield output_text(report, node)
    else:
        yield ", ".join(node.inside[:2])
        calls = units.counted(node.cost.calls, "call")
        yield f"{calls}, {units.counted(node.cost.launches, 'launch', 'launches')}"


def output_text(report: Report, node: PictureNode) -> str:
    """Dtype and shape of what the first call gives, and how many more tensors there are."""
    outputs = report.graph.outputs(node.lead) or report.graph.operands(node.lead)
    if not outputs:
        return ""
    more = f" +{len(outputs) - 1}" if len(outputs) > 1 else ""
    return f"{units.tensor(report.graph.tensor(outputs[0]))}{more}"


def edge_look(report: Report, src: PictureNode, dst: PictureNode, edge: PictureEdge) -> dict[str, str]:
    """A tensor on its way, or an order that must be kept (dashed)."""
    shown = [tensor_text(report, report.graph.tensor(tensor)) for tensor in edge.tensors[:8]]
    if len(edge.tensors) > len(shown):
        shown.append(f"... {units.counted(len(edge.tensors), 'tensor')}, {units.moved(edge.nbytes)}")
    if edge.kind == "order":
        told = plain("\n".join(["order only:", *shown]))
        look = {"tooltip": told, "style": "dashed", "color": ORDER_EDGE, "penwidth": "0.7"}
    else:
        look = {"tooltip": plain("\n".join(shown)), "penwidth": f"{edge_width(edge.nbytes):.2f}"}
    if dst.is_quiet:
        look["arrowhead"] = "none"
    if edge.kind == "order" or src.lead > dst.lead:
        # Neither a hazard nor the way back of a folded loop may turn the ranks around.
        look["constraint"] = "false"
    return look


def passing_look(item: Passing) -> dict[str, str]:
    """The arrow that stands for all tensors between two phases."""
    text = f"{item.src} to {item.dst}: {units.counted(item.tensors, 'tensor')}, {units.moved(item.nbytes)}"
    return {"tooltip": plain(text), "penwidth": f"{edge_width(item.nbytes):.2f}", "constraint": "false"}


def edge_width(nbytes: int) -> float:
    """Points: 0.6 up to a kilobyte, then 0.5 more for each factor of ten (1 MB: 2.1, 1 GB: 3.6)."""
    return 0.6 + 0.5 * max(0.0, math.log10(max(1, nbytes) / 1e3))
