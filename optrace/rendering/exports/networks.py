"""The op graph for networkx and what reads its formats: GraphML and node-link JSON.

A node a call with the known figures of ``columns``; an edge a dependence with the tensor that it is about. ``x + x``
has two edges.
"""

from __future__ import annotations

import io

import msgspec
import networkx as nx

from optrace.rendering.exports.columns import figures, rows
from optrace.rendering.options import DrawOptions, Rendered
from optrace.report import Report
from optrace.visible import visible


def render_graphml(report: Report, options: DrawOptions) -> Rendered:
    """GraphML (Brandes, Eiglsperger, Lerner; graphml.graphdrawing.org)."""
    network = _network(report, options)
    nodes, edges = network.nodes(data=True), network.edges(data=True)
    for attributes in (network.graph, *(own for _, own in nodes), *(own for *_, own in edges)):
        attributes.update({name: visible(text) for name, text in attributes.items() if isinstance(text, str)})
    sink = io.BytesIO()
    nx.write_graphml_xml(network, sink, named_key_ids=True)
    return Rendered(sink.getvalue())


def render_node_link(report: Report, options: DrawOptions) -> Rendered:
    """What ``networkx.node_link_graph(document, edges="edges")`` reads."""
    return Rendered(msgspec.json.encode(nx.node_link_data(_network(report, options), edges="edges")) + b"\n")


def _network(report: Report, options: DrawOptions) -> nx.MultiDiGraph:
    info = report.graph.info
    network = nx.MultiDiGraph(
        program=info.program, gpu=report.pricing.gpu.key, torch=info.torch, mode=info.mode
    )
    for row in rows(report, options):
        network.add_node(
            row.node.id, label=row.node.label, **{k: v for k, v in figures(row).items() if k != "id"}
        )
    for edge in report.graph.edges:
        tensor = report.graph.tensor(edge.tensor)
        network.add_edge(
            edge.src,
            edge.dst,
            kind=edge.kind,
            tensor=edge.tensor,
            shape=str(tensor),
            nbytes=tensor.nbytes,
        )
    return network
