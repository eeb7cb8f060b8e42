"""The op graph in networkx: the longest chain of device time, which no stream or reordering shortens."""

import networkx as nx
import torch
from torch import nn

import optrace

with optrace.trace(mode="fake") as t:
    model = t.place(nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.ReLU(), nn.Linear(256, 16)))
    model(t.place(torch.randn(1024, 256)))
report = t.report()

graph = nx.DiGraph(report.graph.to_networkx())
for src, dst in graph.edges:
    graph.edges[src, dst]["device_us"] = report.costs[dst].device_us or 0.0
chain = nx.dag_longest_path(graph, weight="device_us")
for call in chain:
    cost = report.costs[call]
    if cost.launches:
        print(
            f"%{call:<4} {graph.nodes[call]['op'].label:20} ~{cost.device_us:.2f} us  {report.bounds[call]}"
        )
