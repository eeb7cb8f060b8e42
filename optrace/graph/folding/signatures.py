"""Numbers for subtrees, equal for equal subgraphs up to tensor ids: hash-consing from the leaves up.

A call counts with its op, plain arguments, and the layouts of its tensors; a module with its class, its children, and
the dependences between calls below different children, by their places in it. Names of children count but for numbers
in them, the module's own does not: ``layers.3`` equals ``layers.4``, ``q_proj`` is not ``k_proj``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Sequence

from optrace.graph.folding.tree import Node, Tree
from optrace.graph.opgraph import OpGraph

_NUMBERS = re.compile(r"\d+")


class Numbers:
    """Distinct values numbered by first appearance."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def of(self, value: Hashable) -> int:
        return self._numbers.setdefault(value, len(self._numbers))


def number_subtrees(graph: OpGraph, tree: Tree) -> None:
    """Set ``same`` and ``like`` of every node."""
    numbers = Numbers()
    inner = _inner_edges(graph, tree)
    for leaf in tree.leaves:
        leaf.same = numbers.of(("same", *_call(graph, leaf.call)))
        leaf.like = numbers.of(("like", graph.op_of(leaf.call)))
    for node in _from_inside(tree.root):
        edges = tuple(inner.get(node, ()))
        node.same = numbers.of((node.kind, node.cls, tuple((stem(c), c.same) for c in node.children), edges))
        node.like = numbers.of((node.kind, node.cls, tuple((stem(c), c.like) for c in node.children), edges))


def stem(node: Node) -> str:
    """The name that repeats have in common: ``layers.#`` of ``layers.11``."""
    return _NUMBERS.sub("#", node.name)


def _call(graph: OpGraph, call: int) -> tuple[Hashable, ...]:
    """What is computed: the op, its arguments, its tensors' layouts, which of them are one, what is written."""
    operands = graph.operands(call)
    first = {tensor: place for place, tensor in reversed(list(enumerate(operands)))}
    return (
        graph.op_of(call),
        graph.template_of(call),
        tuple(graph.tensor_layout(tensor) for tensor in operands),
        tuple(first[tensor] for tensor in operands) if len(first) < len(operands) else (),
        bytes(graph.operand_flags(call)),
        tuple(graph.tensor_layout(tensor) for tensor in graph.outputs(call)),
    )


def _inner_edges(graph: OpGraph, tree: Tree) -> dict[Node, list[tuple[int, int, bool]]]:
    """Dependences by the innermost node around both ends: places of the ends counted from its first leaf, and whether
    data flows."""
    found: dict[Node, list[tuple[int, int, bool]]] = defaultdict(list)
    leaves, leaf_of = tree.leaves, tree.leaf_of
    for edge in graph.edges:
        src, dst = leaf_of[edge.src], leaf_of[edge.dst]
        if src == dst or src < 0 or dst < 0:
            continue
        node = leaves[dst].parent
        while node is not None and not node.first <= src < node.first + node.leaves:
            node = node.parent
        assert node is not None
        found[node].append((src - node.first, dst - node.first, edge.kind == "data"))
    return found


def _from_inside(root: Node) -> Sequence[Node]:
    """All nodes but leaves, each after those inside it."""
    order: list[Node] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.kind != "call":
            order.append(node)
            waiting += node.children
    return order[::-1]
