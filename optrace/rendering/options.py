"""What a caller may choose about a rendering, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass

from optrace.rendering.validation import Validation
from optrace.report import Report

#: A picture past this many nodes is no longer read, so it folds by itself, to so many.
READABLE_NODES = 120
FOLDED_NODES = 59

#: What somebody who asks for a depth may see before the picture folds all the same.
ASKED_NODES = 2000


#: What a picture can show besides the graph.
SHOWN = frozenset({"fusion"})


@dataclass(frozen=True, slots=True)
class DrawOptions:
    """How a report is drawn.

    ``depth``: modules deeper than this are drawn as one node each (None: as deep as ``max_nodes`` allows).
    ``max_nodes``: past it a picture folds by itself (None: past 120 to 59, or 2,000 where a depth is asked for).
    ``expand``: paths of modules that are drawn apart from their equals and opened. ``unfold``: each copy is drawn.
    ``layout_timeout_s``: how long the layout program may take before a coarser picture is tried. ``show``: what is
    drawn besides (``fusion``: outlines of what a compiler would fuse). ``batches``: the program at several batch
    sizes, the report itself first; a page can switch between them. ``measured``: draw the validation view, coloured by
    the error of prediction; a page can be coloured by it.
    """

    depth: int | None = None
    max_nodes: int | None = None
    layout_timeout_s: float = 30.0
    show: frozenset[str] = frozenset()
    batches: tuple[tuple[int, Report], ...] = ()
    measured: Validation | None = None
    expand: frozenset[str] = frozenset()
    unfold: bool = False

    def __post_init__(self) -> None:
        if self.depth is not None and self.depth < 0:
            raise ValueError(f"depth counts module levels and cannot be {self.depth}")
        if self.max_nodes is not None and self.max_nodes < 1:
            raise ValueError(f"max_nodes is a number of nodes and cannot be {self.max_nodes}")
        if not self.layout_timeout_s > 0:
            raise ValueError(f"layout_timeout_s is a time in seconds and cannot be {self.layout_timeout_s}")
        unknown = self.show - SHOWN
        if unknown:
            raise ValueError(f"nothing is called {min(unknown)!r} (one of {', '.join(sorted(SHOWN))})")

    @property
    def node_limit(self) -> int:
        """Nodes up to which a picture shows all that it may."""
        if self.max_nodes is not None:
            return self.max_nodes
        return READABLE_NODES if self.depth is None else ASKED_NODES

    @property
    def folded_limit(self) -> int:
        """Nodes of a picture that has to fold."""
        if self.max_nodes is not None:
            return self.max_nodes
        return FOLDED_NODES if self.depth is None else ASKED_NODES


@dataclass(frozen=True, slots=True)
class Rendered:
    """A file's bytes, and what its reader should be told about how it was made."""

    data: bytes
    notes: tuple[str, ...] = ()
