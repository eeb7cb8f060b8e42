"""From a ``Report`` to files: pictures, text and the record, one module a format.

``render(report, "graph.svg")`` picks the format by suffix from the table in ``formats``. The scoreboard
that text, legend and terminal share is data, in ``scoreboard``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from optrace.rendering.errors import RenderError
from optrace.rendering.files import cannot_write, write_whole
from optrace.rendering.formats import FORMATS, Format, choices, format_of, suffix_of
from optrace.rendering.graph_json import read_report
from optrace.rendering.options import DrawOptions
from optrace.rendering.scoreboard import (
    Row,
    TaxLayer,
    TopOp,
    missing_figures,
    provenance,
    scoreboard_rows,
    tax_layers,
    top_ops,
    verdict_line,
)
from optrace.rendering.validation import Validation
from optrace.report import Report

__all__ = [
    "FORMATS",
    "DrawOptions",
    "Format",
    "RenderError",
    "Row",
    "TaxLayer",
    "TopOp",
    "Validation",
    "check_path",
    "choices",
    "missing_figures",
    "provenance",
    "read_report",
    "render",
    "render_bytes",
    "scoreboard_rows",
    "tax_layers",
    "top_ops",
    "verdict_line",
]


def render(
    report: Report,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    depth: int | None = None,
    max_nodes: int | None = None,
    layout_timeout_s: float = 30.0,
    show: Iterable[str] = (),
    batches: Mapping[int, Report] | None = None,
    measured: Validation | None = None,
    expand: Iterable[str] = (),
    unfold: bool = False,
) -> list[str]:
    """Write ``report`` to ``path`` in the format of its suffix, or in ``format`` (``"trace.json"``); the file appears
    whole or not at all.

    Returns what the reader should be told, such as how far the picture was folded. The options are those
    of ``DrawOptions``. Raises ``RenderError``, and ``ValueError`` for an option out of range.
    """
    options = DrawOptions(
        depth,
        max_nodes,
        layout_timeout_s,
        frozenset(show),
        tuple((batches or {}).items()),
        measured,
        frozenset(expand),
        unfold,
    )
    file = Path(path)
    row = check_path(file, format)
    try:
        rendered = row.render(report, options)
        write_whole(file, rendered.data)
    except RenderError as error:
        raise RenderError(f"cannot write {file}: {error}") from None
    except OSError as error:
        raise RenderError(f"cannot write {file}: {error.strerror or error}") from None
    return list(rendered.notes)


def render_bytes(
    report: Report,
    format: str,
    *,
    depth: int | None = None,
    max_nodes: int | None = None,
    layout_timeout_s: float = 30.0,
    show: Iterable[str] = (),
    expand: Iterable[str] = (),
    unfold: bool = False,
) -> bytes:
    """``report`` as ``format`` (``"svg"``, ``"json"``, ...). Raises as ``render`` does."""
    try:
        row = format_of(format)
        options = DrawOptions(
            depth, max_nodes, layout_timeout_s, frozenset(show), expand=frozenset(expand), unfold=unfold
        )
        return row.render(report, options).data
    except RenderError as error:
        raise RenderError(f"cannot render {format}: {error}") from None


def check_path(path: str | os.PathLike[str], format: str | None = None) -> Format:
    """The format that ``path`` would be written in: ``format``, else by its suffix. Raises ``RenderError`` where it
    cannot be written: to be asked before a long trace."""
    file = Path(path)
    try:
        row = format_of(suffix_of(file.name) if format is None else format)
    except RenderError as error:
        raise RenderError(f"cannot write {file}: {error}") from None
    reason = cannot_write(file)
    if reason:
        raise RenderError(f"cannot write {file}: {reason}")
    return row
