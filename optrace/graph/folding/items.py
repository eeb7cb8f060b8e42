"""The folded tree: what a picture or a page draws, opened level by level.

Children are made when they are asked for, each level in one pass over its nodes, so looking at the top of a run of a
million calls costs what is looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from optrace.graph.folding.differences import difference
from optrace.graph.folding.naming import place_name
from optrace.graph.folding.repeats import Run, runs
from optrace.graph.folding.signatures import Numbers, number_subtrees, stem
from optrace.graph.folding.tree import Kind, Node, calls_of, modules_in, tree_of
from optrace.graph.opgraph import OpGraph

#: More items than this in a row are folded though their shapes differ; what is still more is cut into stretches.
READABLE = 48

#: Modules of a loop's body that name it.
_NAMED_MODULES = 3

#: Two or three equal calls in a row, or two pairs, are easier read as they are.
_LEAST_CALLS, _SHORT_BODY = 4, 3


@dataclass(frozen=True)
class _Folding:
    """What all items of a run share. ``apart``: paths of modules that stand apart from their equals."""

    graph: OpGraph
    apart: Collection[str]
    repeats: bool
    numbers: Numbers


class Item:
    """Equal parts of a run, drawn as one: ``count`` neighbours inside its parent, in each of the parent's copies.

    ``nodes`` are all its copies in order; ``alike``: they are equal but for shapes and arguments. ``differs`` says
    what sets it apart from its equals beside it, and is empty where there are none.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        folding: _Folding,
        *,
        parent: Item | None = None,
        name: str = "",
        count: int = 1,
        alike: bool = False,
    ) -> None:
        self.nodes = nodes
        self.parent = parent
        self.name = name or nodes[0].name
        self.count = count
        self.alike = alike
        self.differs = ""
        self._folding = folding

    @property
    def kind(self) -> Kind:
        return self.nodes[0].kind

    @property
    def cls(self) -> str:
        """The class of a module."""
        return self.nodes[0].cls

    @property
    def path(self) -> str:
        """The whole path of a module, that of its first copy."""
        return self.nodes[0].path

    @property
    def copies(self) -> int:
        """How often it is there in all."""
        return len(self.nodes)

    @property
    def is_wanted(self) -> bool:
        """A module that stands apart, or what is around it or inside."""
        if not self._folding.apart or self.kind == "call":
            return False
        above: Item | None = self
        while above is not None:
            if above.path in self._folding.apart:
                return True
            above = above.parent
        return any(map(self._is_apart, modules_in(self.nodes[:1])))

    @property
    def calls(self) -> list[int]:
        """The calls of all copies that stand as nodes, in order; not those that joined them."""
        return calls_of(self.nodes)

    @cached_property
    def children(self) -> tuple[Item, ...]:
        """What is inside, repeats folded."""
        if self.kind == "call":
            return ()
        rows = [node.children for node in self.nodes]
        found, alike = self._runs(rows[0])
        if self._folding.repeats and len(found) > READABLE:
            return tuple(self._stretches(rows, found, alike))
        items = [self._item(rows, run, alike) for run in found]
        _tell_differences(items)
        return tuple(_through(item) for item in items)

    def _runs(self, row: Sequence[Node]) -> tuple[list[Run], bool]:
        """The runs of the first copy's row, which are those of all; whether by likeness only."""
        if not self._folding.repeats:
            return [Run(place, 1, 1) for place in range(len(row))], self.alike
        if not self.alike:
            found = runs(self._keys(row, "same"), lambda start, body: _least(row, start, body))
            if len(found) <= READABLE:
                return found, False
        return runs(self._keys(row, "like"), lambda start, body: _least(row, start, body)), True

    def _keys(self, row: Sequence[Node], grade: str) -> list[int]:
        """Equal for what may be one: no two modules of which one is wanted apart."""
        of = self._folding.numbers.of
        return [
            of(("apart", number)) if self._is_apart(node) else of((stem(node), getattr(node, grade)))
            for number, node in enumerate(row)
        ]

    def _is_apart(self, node: Node) -> bool:
        return bool(node.path) and any(
            path == node.path or path.startswith(f"{node.path}.") for path in self._folding.apart
        )

    def _item(self, rows: Sequence[Sequence[Node]], run: Run, alike: bool) -> Item:
        row = rows[0]
        if run.body == 1:
            nodes = [node for row in rows for node in row[run.start : run.end]]
            name = _run_name(row[run.start], row[run.end - 1])
        else:
            nodes = [
                _together("loop", row[start : start + run.body])
                for row in rows
                for start in range(run.start, run.end, run.body)
            ]
            name = _modules_name(row[run.start : run.start + run.body]) or self._place_name(nodes[0])
        alike = alike and len(nodes) > 1
        return Item(nodes, self._folding, parent=self, name=name, count=run.count, alike=alike)

    def _place_name(self, node: Node) -> str:
        return place_name(self._folding.graph, calls_of([node]))

    def _stretches(self, rows: Sequence[Sequence[Node]], found: Sequence[Run], alike: bool) -> list[Item]:
        """A level too long to read, cut into about as many stretches as each has runs."""
        size = max(24, -(-len(found) // 36))
        items = []
        for first in range(0, len(found), size):
            start, end = found[first].start, found[min(len(found), first + size) - 1].end
            nodes = [_together("stretch", row[start:end]) for row in rows]
            name = self._place_name(nodes[0])
            items.append(Item(nodes, self._folding, parent=self, name=name, alike=alike and len(nodes) > 1))
        return items


def fold(
    graph: OpGraph, joins: Sequence[int] | None = None, *, repeats: bool = True, apart: Collection[str] = ()
) -> Item:
    """The whole run as one item, to be opened.

    ``joins[call]`` is the call that ``call`` is drawn with (itself, where it is shown; -1: it is left out); without ``repeats`` every copy
    is an item of its own; modules at the paths ``apart`` and those around them stand apart from their equals. Raises
    ``LookupError`` for a path that no module of the run has.
    """
    tree = tree_of(graph, range(len(graph)) if joins is None else joins)
    unknown = set(apart) - {node.path for node in modules_in([tree.root])} if apart else set()
    if unknown:
        raise LookupError(min(unknown))
    if repeats:
        number_subtrees(graph, tree)
    return Item([tree.root], _Folding(graph, frozenset(apart), repeats, Numbers()))


def _least(row: Sequence[Node], start: int, body: int) -> int:
    return _LEAST_CALLS if row[start].kind == "call" and body < _SHORT_BODY else 2


def _run_name(first: Node, last: Node) -> str:
    """``layers.0-79`` of ``layers.0`` and ``layers.79``."""
    if first.name == last.name:
        return first.name
    shared = 0
    for one, other in zip(first.name, last.name, strict=False):
        if one != other or one.isdigit():
            break
        shared += 1
    return f"{first.name}-{last.name[shared:]}"


def _modules_name(body: Sequence[Node]) -> str:
    """``LeakyReLU, Linear`` of a loop over modules; empty where something else is in its body, or much."""
    if len(body) > _NAMED_MODULES or any(node.kind != "module" for node in body):
        return ""
    return ", ".join(node.cls or node.name for node in body)


def _together(kind: Kind, nodes: Sequence[Node]) -> Node:
    return Node(kind, "", children=list(nodes))


def _through(item: Item) -> Item:
    """A list of modules that holds one item costs nothing itself: its name stands in front of the item's."""
    if item.kind != "module" or item.cls or item.count > 1 or len(item.children) != 1:
        return item
    (only,) = item.children
    if only.kind != "module":
        return item
    through = Item(
        only.nodes,
        only._folding,
        parent=item.parent,
        name=f"{item.name}.{only.name}",
        count=only.count,
        alike=only.alike,
    )
    through.differs = item.differs or only.differs
    return through


def _tell_differences(items: Sequence[Item]) -> None:
    """Of modules that are numbered in a row, those that are not like most; a module of a loop's body is there as often
    as the loop."""
    groups: dict[tuple[str, str], list[tuple[int, str, Node, Item | None]]] = defaultdict(list)
    for item in items:
        node = item.nodes[0]
        if item.kind == "module":
            groups[item.cls, stem(node)].append((item.count, item.name, node, item))
        elif item.kind == "loop":
            for inner in node.children:
                name = f"{inner.name} of {item.name} x{item.count:,}"
                groups[inner.cls, stem(inner)].append((item.count, name, inner, None))
    for group in groups.values():
        most, name, like, _ = max(group, key=lambda row: row[0])
        for _, _, node, told in group:
            if told is not None and most > 1 and node.same != like.same:
                told.differs = f"unlike {name}: {difference(node, like)}"
