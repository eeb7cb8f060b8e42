"""Figures of a run in words: their names, their units, and how much one differs from another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from optrace import units
from optrace.diagnosis.figures import TIMES, Figures


@dataclass(frozen=True, slots=True)
class FigureText:
    """What people call a figure, and how they write it."""

    label: str
    text: Callable[[float | None], str]


FIGURES: Mapping[str, FigureText] = {
    "launches": FigureText("launches", units.count),
    "hbm_bytes": FigureText("HBM traffic", units.moved),
    "peak_bytes": FigureText("peak memory", units.allocated),
    "flops": FigureText("arithmetic", units.flop),
    "syncs": FigureText("syncs", units.count),
    "host_us": FigureText("host time", units.predicted_us),
    "device_us": FigureText("device time", units.predicted_us),
    "wall_us": FigureText("wall clock", units.predicted_us),
}


def figure(figures: Figures, name: str) -> str:
    """A figure with what it leaves out: ``~12 us + ?``."""
    shown = FIGURES[name].text(figures.value(name))
    incomplete = figures.unknown.get("device_us" if name in TIMES else name)
    return f"{shown} + {units.UNKNOWN}" if incomplete else shown


def difference(name: str, change: float) -> str:
    """A change with its sign; predicted where the figure is.

    >>> difference("launches", -3), difference("wall_us", 12.0), difference("launches", 0)
    ('-3', '~+12 us', '0')
    """
    if not change:
        return "0"
    shown = FIGURES[name].text(abs(change))
    sign = "+" if change > 0 else "-"
    return f"~{sign}{shown[1:]}" if shown.startswith("~") else f"{sign}{shown}"


def relative(before: float, after: float) -> str:
    """How much a figure grew, in percent of what it was.

    >>> relative(200.0, 150.0), relative(0, 0), relative(0, 4), relative(100, 1200)
    ('-25 %', '', 'new', 'x12')
    """
    if before == after:
        return ""
    if not before:
        return "new"
    ratio = after / before
    if ratio >= 10:
        return f"x{units.number(ratio)}"
    return f"{100 * (ratio - 1):+.{1 if abs(ratio - 1) < 0.0995 else 0}f} %"
