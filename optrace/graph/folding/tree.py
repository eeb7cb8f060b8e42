"""The run as a tree: phases, calls of modules one inside the other, and calls.

What the record says of a call is its innermost module. A call of a module is a node of its own: the thousand calls of
an RNN's cell are a thousand nodes, in the order of time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from optrace.graph.nouns import Phase
from optrace.graph.opgraph import OpGraph

Kind = Literal["phase", "module", "call", "loop", "stretch"]


@dataclass(slots=True, eq=False)
class Node:
    """A phase, a call of a module, a call, or neighbours taken together.

    ``name`` is a phase, the last part of a module's path or an op; ``path`` a module's whole path. ``first`` and
    ``leaves``: its calls stand at these places in the order of the tree. ``same`` is equal for equal subgraphs,
    ``like`` for such as are equal but for shapes and arguments.
    """

    kind: Kind
    name: str
    cls: str = ""
    path: str = ""
    call: int = -1
    children: list[Node] = field(default_factory=list)
    parent: Node | None = None
    first: int = 0
    leaves: int = 0
    same: int = -1
    like: int = -1

    def add(self, child: Node) -> Node:
        child.parent = self
        self.children.append(child)
        return child


@dataclass(frozen=True, slots=True)
class Tree:
    """``leaves``: the nodes of calls in the order of the tree; ``leaf_of[call]`` the place of the node that a call is
    part of, or -1."""

    root: Node
    leaves: list[Node]
    leaf_of: list[int]


def tree_of(graph: OpGraph, joins: Sequence[int]) -> Tree:
    """``joins[call]`` is the call that a call stands with: itself, another, or -1 for one that is left out."""
    places = _Places(graph)
    modules = _modules_with_gradients(graph)
    for call in range(len(graph)):
        if joins[call] == call:
            places.add(call, modules[call])
    tops = list(places.phases.values())
    root = tops[0] if len(tops) == 1 else Node("phase", "all calls")
    if len(tops) != 1:
        for top in tops:
            root.add(top)
    leaves = _numbered(root)
    place_of = {leaf.call: number for number, leaf in enumerate(leaves)}
    return Tree(root, leaves, [place_of.get(joins[call], -1) for call in range(len(graph))])


def _modules_with_gradients(graph: OpGraph) -> list[int]:
    """The row of each call's module. Autograd sums gradients outside of any, and in no call's name (a call that it
    makes for one of the forward pass has that one's line): they are in the module of what is summed."""
    rows = [graph.module_of(call) for call in range(len(graph))]
    backward = [graph.phase(call) == "backward" for call in range(len(graph))]
    known = {graph.source_of(call) for call in range(len(graph)) if not backward[call]}
    sums = [
        row < 0 and backward[call] and graph.source_of(call) not in known for call, row in enumerate(rows)
    ]
    if any(sums):
        latest = [-1] * len(rows)
        # Edges come by later call, so what a sum reads has its module already.
        for edge in graph.edges:
            if sums[edge.dst] and edge.src > latest[edge.dst] and backward[edge.src]:
                latest[edge.dst] = edge.src
                rows[edge.dst] = rows[edge.src]
    return rows


class _Places:
    """Nodes made call by call."""

    def __init__(self, graph: OpGraph) -> None:
        self.phases: dict[Phase, Node] = {}
        self._graph = graph
        self._paths = [row.path.split(".") for row in graph.module_calls.rows]
        self._classes = {row.path: row.cls for row in graph.module_calls.rows}
        self._calls_of: dict[str, int] = {}
        for row in graph.module_calls.rows:
            self._calls_of[row.path] = max(self._calls_of.get(row.path, 0), row.call)
        # Of the current run of calls of one phase: a step that comes again has nodes of its own.
        self._phase: Phase | None = None
        self._nodes: dict[tuple[str, int], Node] = {}
        self._last_own: dict[str, int] = {}
        self._latest: tuple[Phase, int, Node] | None = None

    def add(self, call: int, module: int) -> None:
        phase = self._graph.phase(call)
        if phase != self._phase:
            self._phase = phase
            self._nodes.clear()
        latest = self._latest
        if latest is not None and latest[0] == phase and latest[1] == module:
            parent = latest[2]
        else:
            top = self.phases.get(phase)
            if top is None:
                top = self.phases[phase] = Node("phase", phase)
            parent = self._module_node(top, module) if module >= 0 else top
            self._latest = phase, module, parent
        parent.add(Node("call", self._graph.facts(call).label, call=call))

    def _module_node(self, top: Node, module: int) -> Node:
        row = self._graph.module_calls[module]
        self._last_own[row.path] = row.call
        node = top
        path = ""
        for part in self._paths[module]:
            path = f"{path}.{part}" if path else part
            number = row.call if path == row.path else self._call_above(path, row.path, row.call)
            # A list of modules is never called itself: it is one node as long as nothing comes between.
            found = self._nodes.get((path, number))
            listed = path not in self._classes
            if found is None or found.parent is not node or (listed and node.children[-1] is not found):
                found = node.add(Node("module", part, self._classes.get(path, ""), path))
                self._nodes[path, number] = found
            node = found
        return node

    def _call_above(self, path: str, inner: str, call: int) -> int:
        """The number of the call of the module at ``path`` that the ``call``-th call of ``inner`` is part of.

        The record does not hold it: a module is taken to call what is inside it equally often each time, and where that
        cannot be, the inner one is part of the latest call that is known.
        """
        calls, inner_calls = self._calls_of.get(path, 0), self._calls_of[inner]
        if calls <= 1:
            return 1
        if inner_calls % calls == 0:
            return (call - 1) // (inner_calls // calls) + 1
        return self._last_own.get(path, 1)


def _numbered(root: Node) -> list[Node]:
    """Leaves in order; sets ``first`` and ``leaves``, and puts a list's name in front of a module alone in it."""
    leaves: list[Node] = []
    waiting: list[tuple[Node, bool]] = [(root, False)]
    while waiting:
        node, done = waiting.pop()
        if node.kind == "call":
            node.first, node.leaves = len(leaves), 1
            leaves.append(node)
        elif done:
            node.leaves = len(leaves) - node.first
        else:
            node.first = len(leaves)
            node.children = [_through(child) for child in node.children]
            waiting.append((node, True))
            waiting += [(child, False) for child in reversed(node.children)]
    return leaves


def _through(node: Node) -> Node:
    """A list of modules that holds one costs nothing itself."""
    while node.kind == "module" and not node.cls and len(node.children) == 1:
        (only,) = node.children
        if only.kind != "module":
            break
        only.name, only.parent = f"{node.name}.{only.name}", node.parent
        node = only
    return node


def modules_in(nodes: Iterable[Node]) -> Iterator[Node]:
    """Calls of modules, some nodes themselves and all below them."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node.kind == "module":
            yield node
        waiting += node.children


def calls_of(nodes: Iterable[Node]) -> list[int]:
    """The calls of some nodes, in order."""
    found: list[int] = []
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node.kind == "call":
            found.append(node.call)
        else:
            waiting += node.children
    return sorted(found)
