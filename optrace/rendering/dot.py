"""The picture in DOT: nodes coloured by what bounds them and as large as their share of the wall clock.

Written with the ``graphviz`` package; no layout program is needed. The legend is the graph's own label, so
that it takes no part in the layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import graphviz

from optrace import units
from optrace.rendering.boxes import Box, nest
from optrace.rendering.collapse import Folder
from optrace.rendering.columns import Columns, columns
from optrace.rendering.cures import outlines
from optrace.rendering.legend import legend
from optrace.rendering.looks import box_look, edge_look, head_look, node_look, passing_look
from optrace.rendering.options import DrawOptions, Rendered
from optrace.rendering.palette import EDGE
from optrace.rendering.phases import Passing, head_ids, passing, starts
from optrace.rendering.picture import GRAIN_TEXT, Picture, PictureNode
from optrace.rendering.stacking import rows
from optrace.rendering.validation import Validation, validated_box, validated_node, validation_legend
from optrace.report import Report

#: Measured alike by layout programs (as Arial or its twins Arimo and Liberation Sans), known to browsers.
FONT = "Helvetica"


def render(report: Report, options: DrawOptions) -> Rendered:
    """The DOT text of a report, as fine as fits."""
    source, notes = draw(report, next(Folder(report, options).pictures()), options)
    return Rendered(source.encode(), notes)


def draw(
    report: Report, picture: Picture, options: DrawOptions, notes: tuple[str, ...] = ()
) -> tuple[str, tuple[str, ...]]:
    """DOT text of a picture, and what its reader should be told; ``notes`` come first."""
    told = (*notes, *fold_note(picture, options))
    regions = outlines(report) if "fusion" in options.show else {}
    return dot_source(report, picture, told, regions, options.measured), told


def fold_note(picture: Picture, options: DrawOptions) -> tuple[str, ...]:
    """What is folded, and how to open it up."""
    if not picture.folded:
        return ()
    ways = []
    if any(node.kind != "op" for node in picture.nodes):
        ways.append(f"--max-nodes {2 * len(picture.graph)}")
    if picture.closed:
        ways.append(f"--expand {picture.closed}")
    if not options.unfold:
        ways.append("--unfold")
    drawn = f"{units.counted(picture.calls, 'call')} drawn as {units.counted(len(picture.graph), 'node')}"
    return (f"{drawn}: {GRAIN_TEXT[picture.grain]}. To open it up: {' or '.join(ways)}.",)


@dataclass(frozen=True, slots=True)
class _Scene:
    """What the boxes of one picture are drawn from."""

    report: Report
    heads: Mapping[str, str]
    passed: Sequence[Passing]
    columns: Columns
    regions: Mapping[int, tuple[int, str]]
    measured: Validation | None


def dot_source(
    report: Report,
    picture: Picture,
    notes: tuple[str, ...],
    regions: Mapping[int, tuple[int, str]] = MappingProxyType({}),
    measured: Validation | None = None,
) -> str:
    """The picture with its legend. ``regions`` are a call's number and colour of outline, as ``outlines`` gives; with
    ``measured`` it is the validation view."""
    told = legend(report, notes) if measured is None else validation_legend(report, measured, notes)
    dot = graphviz.Digraph(
        "optrace",
        graph_attr={
            "label": told,
            "labelloc": "t",
            "labeljust": "l",
            "fontname": FONT,
            "ranksep": "0.26",
            "nodesep": "0.2",
            "pad": "0.3",
            "bgcolor": "white",
            "tooltip": " ",
        },
        node_attr={"fontname": FONT, "fontsize": "10", "shape": "box", "style": "rounded,filled"},
        edge_attr={"fontname": FONT, "color": EDGE, "arrowsize": "0.55"},
    )
    scene = _Scene(report, head_ids(picture), passing(report, picture), columns(picture), regions, measured)
    column = scene.columns.column
    if scene.columns.beside:
        # A second pass over all boxes at once would forget which column comes first.
        dot.attr(remincross="false")
    _add_box(dot, scene, nest(picture))
    for src, dst, edge in picture.edges:
        if picture.phase_of(src) == picture.phase_of(dst):
            look = edge_look(report, src, dst, edge)
            if column[src.id] != column[dst.id]:
                look["constraint"] = "false"
            dot.edge(src.id, dst.id, **look)
    for left, right in scene.columns.beside:
        dot.edge(left, right, style="invis", constraint="false")
    below = rows(picture, scene.columns)
    for above, under in below:
        dot.edge(above, under, style="invis")
    if scene.heads:
        lower = {under for _, under in below}
        for node in starts(picture, scene.columns):
            if node.id not in lower:
                dot.edge(scene.heads[picture.phase_of(node)], node.id, style="invis")
        for item in scene.passed:
            dot.edge(scene.heads[item.src], scene.heads[item.dst], **passing_look(item))
    return str(dot.source)


def _outline(scene: _Scene, node: PictureNode) -> dict[str, str]:
    """A node of one region has its outline and its number; one that several regions share has neither."""
    found = {scene.regions.get(call) for call in node.calls if not node.is_quiet}
    found.discard(None)
    if len(found) != 1:
        return {}
    ((number, color),) = (region for region in found if region is not None)
    return {"color": color, "penwidth": "4", "xlabel": f"fused {number}"}


def _add_box(dot: graphviz.Digraph, scene: _Scene, box: Box, name: str = "cluster") -> None:
    for node in box.nodes:
        caption = box.captions.get(node.id, "")
        if scene.measured is None:
            look = node_look(scene.report, node, caption)
        else:
            look = validated_node(scene.report, scene.measured, node, caption)
        dot.node(node.id, **look | _outline(scene, node))
    own = {node.id for node in box.nodes}
    for left, right in scene.columns.beside:
        if left in own and right in own:
            with dot.subgraph(graph_attr={"rank": "same"}) as row:
                row.edge(left, right, style="invis")
    for number, inner in enumerate(box.boxes):
        with dot.subgraph(name=f"{name}_{number}") as cluster:
            depth = name.count("_")
            if scene.measured is None:
                cluster.attr(**box_look(scene.report, inner, depth=depth))
            else:
                cluster.attr(**validated_box(scene.report, scene.measured, inner, depth=depth))
            if inner.is_phase:
                handed = [item for item in scene.passed if item.src == inner.title]
                cluster.node(scene.heads[inner.title], **head_look(inner, handed))
            _add_box(cluster, scene, inner, f"{name}_{number}")
