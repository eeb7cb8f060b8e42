"""The colours of the picture.

From Okabe and Ito's colour-blind-safe set, shifted so that lightness differs too (CIE L* 82, 69, 58, 42):
the picture still reads in greyscale print. What bounds a node is also written on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from optrace.diagnosis import Bound


@dataclass(frozen=True, slots=True)
class Paint:
    """How nodes of one bound look. ``meaning`` is what the legend says."""

    fill: str
    text: str
    border: str
    meaning: str


PAINT: dict[Bound, Paint] = {
    "launch": Paint("#f7c65b", "#1a1a1a", "#8a6100", "the GPU waits for the host to launch it"),
    "memory": Paint("#56b4e9", "#10151a", "#1c5f88", "bytes through HBM or L2"),
    "compute": Paint("#12966f", "#ffffff", "#07553d", "arithmetic"),
    "sync": Paint("#a63d0f", "#ffffff", "#5c1f04", "the host waits for the GPU, then the GPU for the host"),
    "unknown": Paint("#ffffff", "#1a1a1a", "#8c8c8c", "no price is known"),
    "host": Paint("#ffffff", "#6e6e6e", "#c4c4c4", "launches nothing: views, metadata, allocation"),
}

INK = "#1a1a1a"
QUIET = "#6e6e6e"
EDGE = "#8a8a8a"
ORDER_EDGE = "#bdbdbd"

#: Fills of nested boxes, outermost first; deeper ones start again.
BOX_FILLS = ("#f7f7f5", "#efefec", "#f7f7f5", "#e9e9e5")
BOX_BORDER = "#c9c9c4"
