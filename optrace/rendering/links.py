"""Edges of a picture from the dependences of its calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from optrace.graph import OpGraph
from optrace.rendering.picture import PictureEdge, PictureNode

#: From, to, and what is between; nodes by their place in the picture.
Link: TypeAlias = tuple[int, int, PictureEdge]

#: Edges between two calls that are drawn one by one.
_MOST_APART = 3

#: Reachability takes nodes^2 bits.
_REACHABLE_NODES = 5000


def links(graph: OpGraph, nodes: Sequence[PictureNode], home: Sequence[int]) -> Iterator[Link]:
    """Edges between nodes, where ``home[call]`` is the place of a call's node.

    Two single calls keep each of their edges (``x + x`` has two) unless there are many, as between the calls of a
    foreach optimizer; between folded nodes all edges of a kind are one. Order edges that other edges imply are left
    out.
    """
    found: dict[tuple[int, int, Literal["data", "order"]], list[int]] = defaultdict(list)
    for edge in graph.edges:
        src, dst = home[edge.src], home[edge.dst]
        if src != dst:
            found[(src, dst, edge.kind)].append(edge.tensor)
    data: list[Link] = []
    order: list[Link] = []
    for (src, dst, kind), each in found.items():
        apart = kind == "data" and len(each) <= _MOST_APART and nodes[src].is_single and nodes[dst].is_single
        for tensors in [[tensor] for tensor in each] if apart else [list(dict.fromkeys(each))]:
            total = sum(graph.tensor(tensor).nbytes for tensor in tensors)
            (data if kind == "data" else order).append((src, dst, PictureEdge(kind, tuple(tensors), total)))
    yield from data
    yield from _telling(len(nodes), data, order)


def _telling(nodes: int, data: Sequence[Link], order: Sequence[Link]) -> Iterator[Link]:
    """The order edges that no path of other edges implies already.

    An optimizer's in-place update must follow each read of its parameter, but all of them already lie on
    the way to the gradient it uses. Nodes stand in the order of their calls; an edge against it comes from
    folding a loop and says nothing.
    """
    if nodes > _REACHABLE_NODES:
        yield from order
        return
    before = _by_target((src, dst, edge) for src, dst, edge in data if src < dst)
    hazards = _by_target((src, dst, edge) for src, dst, edge in order if src < dst)
    reach: list[int] = []
    for node in range(nodes):
        mask = 0
        for src, _, _ in before.get(node, ()):
            mask |= reach[src] | 1 << src
        for link in sorted(hazards.get(node, ()), key=lambda link: -link[0]):
            if not mask >> link[0] & 1:
                yield link
                mask |= reach[link[0]] | 1 << link[0]
        reach.append(mask)


def _by_target(items: Iterator[Link]) -> Mapping[int, list[Link]]:
    found: dict[int, list[Link]] = defaultdict(list)
    for link in items:
        found[link[1]].append(link)
    return found
