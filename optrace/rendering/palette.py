"""The colours of the picture.

From Okabe and Ito's colour-blind-safe set, shifted so that lightness differs too (CIE L* 82, 70, 49, 36):
the picture still reads in greyscale print. Text has a contrast of at least 4.5 with what it stands on (WCAG AA). What
bounds a node is also written on it.
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
    "compute": Paint("#0e8462", "#ffffff", "#064a34", "arithmetic"),
    "sync": Paint("#93370d", "#ffffff", "#511b03", "the host waits for the GPU, then the GPU for the host"),
    "unknown": Paint("#ffffff", "#1a1a1a", "#8c8c8c", "no price is known"),
    "host": Paint("#ffffff", "#666666", "#c4c4c4", "launches nothing: views, metadata, allocation"),
}

INK = "#1a1a1a"
QUIET = "#666666"
EDGE = "#808080"
ORDER_EDGE = "#949494"

#: Fills of nested boxes, outermost first; deeper ones start again.
BOX_FILLS = ("#f7f7f5", "#efefec", "#f7f7f5", "#e9e9e5")
BOX_BORDER = "#c9c9c4"
