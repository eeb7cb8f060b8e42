"""What sets a copy apart from its equals, in a few words."""

from __future__ import annotations

from collections import Counter

from optrace.graph.folding.tree import Node

#: Ops that are named.
_NAMED = 3


def difference(node: Node, other: Node) -> str:
    """What ``node`` has that ``other`` has not and the other way round; where one module inside them is all that
    differs, of that."""
    pairs = list(zip(node.children, other.children, strict=False))
    if len(node.children) == len(other.children) and all(a.name == b.name for a, b in pairs):
        changed = [(a, b) for a, b in pairs if a.same != b.same]
        if len(changed) == 1 and changed[0][0].kind == changed[0][1].kind == "module":
            here, there = changed[0]
            if here.cls != there.cls:
                return f"{here.name} is {here.cls or 'a list'}, not {there.cls or 'a list'}"
            return f"in {here.name}, {difference(here, there)}"
    return _of_calls(_calls(node), _calls(other))


def _of_calls(here: list[Node], there: list[Node]) -> str:
    """The coarsest difference that there is: of ops, of shapes and arguments, of edges and order."""
    ops = Counter(leaf.name for leaf in here), Counter(leaf.name for leaf in there)
    if ops[0] != ops[1]:
        said = [_named(ops[0] - ops[1], "with"), _named(ops[1] - ops[0], "without")]
        return ", ".join(part for part in said if part)
    shapes = Counter((leaf.name, leaf.same) for leaf in here) - Counter(
        (leaf.name, leaf.same) for leaf in there
    )
    if shapes:
        changed: Counter[str] = Counter()
        for (name, _), count in shapes.items():
            changed[name] += count
        return _named(changed, "other shapes or arguments of")
    return "the same calls, connected or ordered otherwise"


def _named(ops: Counter[str], word: str) -> str:
    if not ops:
        return ""
    listed = [f"{count} {name}" if count > 1 else name for name, count in ops.most_common(_NAMED)]
    more = f" and {len(ops) - _NAMED} more" if len(ops) > _NAMED else ""
    return f"{word} {', '.join(listed)}{more}"


def _calls(node: Node) -> list[Node]:
    found: list[Node] = []
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current.kind == "call":
            found.append(current)
        waiting += current.children[::-1]
    return found
