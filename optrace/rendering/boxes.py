"""The nested boxes of the picture: phases and modules, without those that would only frame one thing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from optrace.rendering.picture import Picture, PictureNode
from optrace.rendering.sums import CostSum


@dataclass(slots=True)
class Box:
    """A box: ``title`` (``blocks.0``), the module's class, its cost, and what it holds.

    ``captions`` names nodes that were alone in a box of their own by that box's title.
    """

    title: str = ""
    cls: str = ""
    cost: CostSum = field(default_factory=CostSum)
    is_phase: bool = False
    nodes: list[PictureNode] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    captions: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Title and class, the class once where both are the same."""
        return self.title if self.cls in ("", self.title) else f"{self.title} {self.cls}"


def nest(picture: Picture) -> Box:
    """The outermost box, without a title, with all others in it."""
    root = Box()
    by_path: dict[tuple[str, ...], Box] = {(): root}

    def box_at(path: tuple[str, ...]) -> Box:
        box = by_path.get(path)
        if box is None:
            group = picture.groups[path]
            box = by_path[path] = Box(group.name, group.cls, group.cost, group.is_phase)
            box_at(path[:-1]).boxes.append(box)
        return box

    for node in picture.nodes:
        box_at(node.group).nodes.append(node)
    _tidy(root)
    return root


def _tidy(box: Box) -> None:
    """From the inside out: a box whose only content is a box takes it over, and a module's box around a
    single node becomes that node's caption."""
    kept = []
    for inner in box.boxes:
        _tidy(inner)
        while not inner.nodes and len(inner.boxes) == 1 and not inner.is_phase:
            only = inner.boxes[0]
            inner = replace(only, title=f"{inner.title}.{only.title}")
        if not inner.boxes and len(inner.nodes) == 1 and not inner.is_phase:
            node = inner.nodes[0]
            told = inner.captions.get(node.id)
            box.captions[node.id] = f"{inner.title}.{told}" if told else inner.name
            box.nodes.append(node)
        else:
            kept.append(inner)
    box.boxes = kept
