"""The op graph for Model Explorer: the graph with its modules as layers, and node data that colours it.

``model-explorer graph.explorer.json`` opens the graph, coloured by bound; ``graph.nodedata.json``, added in its page
as node data, colours nodes by their share of the wall clock. Field names are those of the tool's
``graph_builder`` and ``node_data_builder``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from optrace import units
from optrace.diagnosis import Bound
from optrace.graph import OpNode
from optrace.rendering.exports.columns import figures, rows
from optrace.rendering.options import DrawOptions, Rendered
from optrace.rendering.palette import PAINT
from optrace.rendering.places import PHASE_NAMES
from optrace.report import Report

#: The graph's id: what node data name.
GRAPH = "optrace"

#: Of a share of the wall clock: white is none, the last the largest.
_GRADIENT = (
    {"stop": 0.0, "bgColor": "#ffffff"},
    {"stop": 0.25, "bgColor": "#fee0b6"},
    {"stop": 1.0, "bgColor": "#b35806"},
)


def render_graph(report: Report, options: DrawOptions) -> Rendered:
    """A graph collection of one graph."""
    graph = report.graph
    incoming: dict[int, list[dict[str, str]]] = defaultdict(list)
    outputs = _output_numbers(report)
    for edge in graph.edges:
        incoming[edge.dst].append(
            {
                "sourceNodeId": str(edge.src),
                "sourceNodeOutputId": str(outputs.get((edge.src, edge.tensor), 0)),
                "targetNodeInputId": str(len(incoming[edge.dst])),
            }
        )
    phases = {graph.phase(call) for call in range(len(graph))}
    nodes = []
    for row in rows(report, options):
        known = figures(row)
        nodes.append(
            {
                "id": str(row.node.id),
                "label": row.node.label,
                "namespace": _namespace(row.node, with_phase=len(phases) > 1),
                "attrs": [{"key": name, "value": str(value)} for name, value in known.items()],
                "incomingEdges": incoming.get(row.node.id, []),
                "outputsMetadata": [
                    {"id": str(place), "attrs": [{"key": "tensor", "value": units.tensor(tensor)}]}
                    for place, tensor in enumerate(row.node.outputs)
                ],
                "style": _style(report.bounds[row.node.id]),
            }
        )
    whole = {
        "program": graph.info.program,
        "priced for": report.pricing.gpu.name,
        "verdict": report.verdict.sentence,
        "wall clock": units.predicted_us(report.timeline.wall_us),
    }
    document = {
        "label": graph.info.program or GRAPH,
        "graphs": [{"id": GRAPH, "nodes": nodes, "groupNodeAttributes": {"": whole}}],
    }
    return Rendered(msgspec.json.encode(document) + b"\n")


def render_node_data(report: Report, options: DrawOptions) -> Rendered:
    """Each node's share of the wall clock, microseconds: measured device time where that was measured."""
    view = options.measured
    if view is not None:
        name, values = f"measured device time on {view.device} (us)", list(view.call_us)
    else:
        name, values = "predicted wall clock (us)", [span.wall_us for span in report.timeline.spans]
    results = {str(call): {"value": round(value, 3)} for call, value in enumerate(values)}
    document = {GRAPH: {"name": name, "results": results, "gradient": _GRADIENT}}
    return Rendered(msgspec.json.encode(document) + b"\n")


def _output_numbers(report: Report) -> dict[tuple[int, int], int]:
    """Which of a call's outputs a tensor is."""
    graph = report.graph
    return {
        (call, tensor): place
        for call in range(len(graph))
        for place, tensor in enumerate(graph.outputs(call))
    }


def _namespace(node: OpNode, *, with_phase: bool) -> str:
    """The layers around a node, outermost first."""
    path = [PHASE_NAMES[node.phase]] if with_phase else []
    if node.module is not None:
        path += node.module.path.split(".")
    return "/".join(part.replace("/", "|") for part in path)


def _style(bound: Bound) -> dict[str, Any]:
    paint = PAINT[bound]
    return {"backgroundColor": paint.fill, "borderColor": paint.border}
