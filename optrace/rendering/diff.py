"""Two runs beside each other: rows for a table, one JSON document, and files of either it or the picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from optrace.diagnosis.compare import Change, Comparison
from optrace.diagnosis.figures import Figures, figures_of
from optrace.rendering import diff_picture
from optrace.rendering.errors import LayoutTooSlowError, RenderError
from optrace.rendering.figures import FIGURES, difference, figure, relative
from optrace.rendering.files import cannot_write, write_whole
from optrace.rendering.layout import lay_out, layout_program
from optrace.report import Report

#: Suffixes that a comparison can be written in.
SUFFIXES = (".dot", ".json", ".pdf", ".png", ".svg")


@dataclass(frozen=True, slots=True)
class Titled:
    """A run and what to call it."""

    title: str
    report: Report


@dataclass(frozen=True, slots=True)
class FigureChange:
    """One figure on either side, written out."""

    label: str
    before: str
    after: str
    change: str
    percent: str


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """A run of a series: its figures by name, each with how much it differs from the first run's."""

    title: str
    figures: dict[str, str]
    percent: dict[str, str]
    bottleneck: str


def figure_changes(comparison: Comparison) -> tuple[FigureChange, ...]:
    """The scoreboard's change."""
    before, after = comparison.before, comparison.after
    return tuple(
        FigureChange(
            row.label,
            figure(before, name),
            figure(after, name),
            difference(name, after.value(name) - before.value(name)),
            relative(before.value(name), after.value(name)),
        )
        for name, row in FIGURES.items()
    )


def series(runs: Sequence[Titled]) -> tuple[SeriesRow, ...]:
    """A line a run, so that passes over one program can be seen to fall line by line."""
    figures = [figures_of(run.report) for run in runs]
    return tuple(
        SeriesRow(
            run.title,
            {name: figure(own, name) for name in FIGURES},
            {name: relative(figures[0].value(name), own.value(name)) for name in FIGURES},
            run.report.verdict.bottleneck or "-",
        )
        for run, own in zip(runs, figures, strict=True)
    )


def series_json(runs: Sequence[Titled]) -> bytes:
    """A series as one JSON document."""
    rows = [
        {
            "title": run.title,
            "program": run.report.graph.info.program,
            "gpu": run.report.pricing.gpu.key,
            **_figures(figures_of(run.report)),
            "bottleneck": run.report.verdict.bottleneck,
        }
        for run in runs
    ]
    return _json({"format": "optrace.scoreboard", "version": 1, "runs": rows})


def diff_json(comparison: Comparison, before: Titled, after: Titled) -> bytes:
    """A comparison as one JSON document (``docs/format.md``)."""
    one, other = comparison.before, comparison.after
    return _json(
        {
            "format": "optrace.diff",
            "version": 1,
            "before": _side(before, one),
            "after": _side(after, other),
            "change": {name: other.value(name) - one.value(name) for name in FIGURES},
            "calls": {
                "before": len(before.report.graph),
                "after": len(after.report.graph),
                "aligned": comparison.aligned,
                "same": len(comparison.same),
            },
            "same_wall_us": comparison.same_wall_us,
            "changes": [_change(change) for change in comparison.changes],
        }
    )


def check_diff_path(path: str | os.PathLike[str]) -> None:
    """Raises ``RenderError`` where a comparison cannot be written to ``path``."""
    file = Path(path)
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        raise RenderError(
            f"cannot write {file}: a comparison is no {suffix or 'file without suffix'} (one of {', '.join(SUFFIXES)})"
        )
    try:
        if suffix not in (".dot", ".json"):
            layout_program(suffix[1:])
    except RenderError as error:
        raise RenderError(f"cannot write {file}: {error}") from None
    reason = cannot_write(file)
    if reason:
        raise RenderError(f"cannot write {file}: {reason}")


def render_diff(
    comparison: Comparison,
    before: Titled,
    after: Titled,
    path: str | os.PathLike[str],
    *,
    layout_timeout_s: float = 30.0,
) -> None:
    """Write a comparison in the format of the file's suffix, whole or not at all. Raises ``RenderError``."""
    check_diff_path(path)
    file = Path(path)
    suffix = file.suffix.lower()
    try:
        if suffix == ".json":
            data = diff_json(comparison, before, after)
        elif suffix == ".dot":
            data = _dot(comparison, before, after, diff_picture.MOST_CHANGES).encode()
        else:
            data = _laid_out(comparison, before, after, suffix[1:], layout_timeout_s)
        write_whole(file, data)
    except RenderError as error:
        raise RenderError(f"cannot write {file}: {error}") from None
    except OSError as error:
        raise RenderError(f"cannot write {file}: {error.strerror or error}") from None


def _laid_out(comparison: Comparison, before: Titled, after: Titled, format: str, timeout_s: float) -> bytes:
    """With half the changes, and half of those, where the layout program takes too long; the legend says how many are
    not drawn."""
    most = diff_picture.MOST_CHANGES
    while True:
        try:
            return lay_out(_dot(comparison, before, after, most), format, timeout_s)
        except LayoutTooSlowError:
            most = min(most, len(comparison.changes)) // 2
            if not most:
                raise


def _dot(comparison: Comparison, before: Titled, after: Titled, most: int) -> str:
    return diff_picture.dot_source(comparison, before.report, after.report, before.title, after.title, most)


def notes(before: Titled, after: Titled, comparison: Comparison) -> tuple[str, ...]:
    """What the reader of a comparison should know about its two sides."""
    told = list(differences(before, after))
    share = comparison.aligned / max(1, min(len(before.report.graph), len(after.report.graph)))
    if share < 0.25:
        told.append(f"only {share:.0%} of the calls align: are these runs of one program, at the same sizes?")
    return tuple(told)


def differences(first: Titled, other: Titled) -> tuple[str, ...]:
    """What two runs differ in beside the program: the GPU they are priced for, torch, the number of steps."""
    told = []
    for what, a, b in (
        ("priced for", first.report.pricing.gpu.key, other.report.pricing.gpu.key),
        ("recorded with torch", *(one.report.graph.info.torch or "?" for one in (first, other))),
        ("steps recorded:", first.report.graph.info.steps, other.report.graph.info.steps),
    ):
        if a != b:
            told.append(f"{what} {a} ({first.title}) and {b} ({other.title})")
    return tuple(told)


def _side(run: Titled, figures: Figures) -> dict[str, Any]:
    return {
        "title": run.title,
        "program": run.report.graph.info.program,
        "torch": run.report.graph.info.torch,
        "gpu": run.report.pricing.gpu.key,
        **_figures(figures),
    }


def _figures(figures: Figures) -> dict[str, Any]:
    return {**{name: figures.value(name) for name in FIGURES}, "unknown": dict(figures.unknown)}


def _change(change: Change) -> dict[str, Any]:
    return {**asdict(change), "calls": change.calls}


def _json(document: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document)) + b"\n"
