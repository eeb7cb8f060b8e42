from __future__ import annotations

import itertools

import pytest

from optrace.rendering import diff_picture
from optrace.rendering.palette import BOX_FILLS, EDGE, INK, PAINT, QUIET


def luminance(color: str) -> float:
    """Relative luminance of WCAG 2.2."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


TEXTS = [
    *((paint.text, paint.fill) for paint in PAINT.values()),
    *((paint.text, paint.fill) for paint in diff_picture.PAINT.values()),
    *((color, fill) for color in (INK, QUIET) for fill in (*BOX_FILLS, "#ffffff")),
]


@pytest.mark.parametrize(("text", "fill"), TEXTS)
def test_text_has_the_contrast_of_wcag_aa(text: str, fill: str) -> None:
    assert contrast(text, fill) >= 4.5


@pytest.mark.parametrize("fill", BOX_FILLS)
def test_edges_stand_out_from_their_box(fill: str) -> None:
    assert contrast(EDGE, fill) >= 3


def test_bounds_can_be_told_apart_in_grey() -> None:
    lightness = sorted(
        116 * luminance(PAINT[bound].fill) ** (1 / 3) - 16
        for bound in ("launch", "memory", "compute", "sync")
    )
    assert all(lighter - darker >= 10 for darker, lighter in itertools.pairwise(lightness))
