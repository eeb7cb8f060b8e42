"""The nested boxes of the picture: phases and modules, without those that would only frame one thing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from optrace.rendering.picture import Picture, PictureNode
from optrace.rendering.sums import CostSum


@dataclass(slots=True)
class Box:
    """A box: ``title`` (``blocks.0``), how often it is there, the module's class, its cost, and what it holds.

    ``captions`` names nodes that were alone in a box of their own by that box's title.
    """

    title: str = ""
    cls: str = ""
    cost: CostSum = field(default_factory=CostSum)
    count: int = 1
    is_phase: bool = False
    is_module: bool = False
    differs: str = ""
    nodes: list[PictureNode] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    captions: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Title, count and class, the class once where both are the same."""
        return self.title + self.times + ("" if self.cls in ("", self.title) else f" {self.cls}")

    @property
    def times(self) -> str:
        """How often it is there in the box around it."""
        return f" x{self.count:,}" if self.count > 1 else ""


def nest(picture: Picture) -> Box:
    """The outermost box, without a title, with all others in it."""
    root = Box()
    by_path: dict[tuple[str, ...], Box] = {(): root}

    def box_at(path: tuple[str, ...]) -> Box:
        box = by_path.get(path)
        if box is None:
            group = picture.groups[path]
            box = by_path[path] = Box(
                group.name,
                group.cls,
                group.cost,
                group.count,
                is_phase=group.is_phase,
                is_module=group.is_module,
                differs=group.differs,
            )
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
        while not inner.nodes and len(inner.boxes) == 1 and inner.is_module and inner.count == 1:
            only = inner.boxes[0]
            inner = replace(only, title=f"{inner.title}.{only.title}", differs=inner.differs or only.differs)
        if not inner.boxes and len(inner.nodes) == 1 and inner.is_module:
            node = inner.nodes[0]
            told = inner.captions.get(node.id)
            box.captions[node.id] = f"{inner.title}.{told}" if told and inner.count == 1 else inner.name
            box.nodes.append(node)
        else:
            kept.append(inner)
    box.boxes = kept
