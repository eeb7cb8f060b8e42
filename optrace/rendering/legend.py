"""The legend of the picture: program, verdict, where the wall clock goes, scoreboard, what colours mean."""

from __future__ import annotations

from collections.abc import Iterator

from optrace.diagnosis import Bound
from optrace.rendering import units
from optrace.rendering.markup import cell, font, paragraph, table
from optrace.rendering.palette import INK, PAINT, QUIET
from optrace.rendering.scoreboard import missing_figures, provenance, scoreboard_rows, verdict_line
from optrace.report import Report

_WIDTH = 560
_COLUMNS = 100

#: Causes in the order of the bar, as the verdict names their microseconds.
_BAR: tuple[tuple[Bound, str], ...] = (
    ("launch", "launch_us"),
    ("memory", "memory_us"),
    ("compute", "compute_us"),
    ("sync", "sync_us"),
    ("host", "host_tail_us"),
)


def legend(report: Report, notes: tuple[str, ...]) -> str:
    """An HTML-like label."""
    info = report.graph.info
    program = info.program or "program"
    traced = f"{info.mode} trace, torch {info.torch}" if info.torch else f"{info.mode} trace"
    blocks = [
        font(program, size=18, bold=True) + font(f"   {traced}", size=10, color=QUIET),
        font(paragraph(verdict_line(report), 84), size=12, color=INK),
        _bar(report),
        _keys(report),
        _scoreboard(report),
        *(font(paragraph(note, _COLUMNS), size=10, color=INK) for note in notes),
        *(font(paragraph(f"? {line}", _COLUMNS), size=10, color=INK) for line in missing_figures(report)),
        font("".join(paragraph(line, _COLUMNS) for line in provenance(report)), size=9, color=QUIET),
    ]
    rows = (cell(block) for block in blocks if block)
    return f"<{table(rows, CELLPADDING='4')}>"


def _bar(report: Report) -> str:
    """The wall clock as one bar, cut by cause."""
    wall = report.timeline.wall_us
    if not wall:
        return ""
    cells = []
    for bound, figure in _BAR:
        part = getattr(report.verdict, figure) / wall
        width = round(part * _WIDTH)
        if width >= 2:
            label = font(units.share(part), size=9, color=PAINT[bound].text) if width >= 34 else ""
            cells.append(
                cell(
                    label,
                    ALIGN="CENTER",
                    BGCOLOR=PAINT[bound].fill,
                    WIDTH=str(width),
                    HEIGHT="16",
                    FIXEDSIZE="TRUE",
                )
            )
    return table(["".join(cells)]) if cells else ""


def _keys(report: Report) -> str:
    """A swatch a bound that the run has, with what it means and its part of the wall clock."""
    present = set(report.bounds)
    wall = report.timeline.wall_us
    shares = {bound: getattr(report.verdict, figure) / wall if wall else 0.0 for bound, figure in _BAR}
    rows = []
    for bound, paint in PAINT.items():
        if bound in present or shares.get(bound, 0.0) > 0:
            part = f"{units.share(shares[bound])} of the wall clock" if shares.get(bound) else ""
            rows.append(
                cell(
                    "",
                    BGCOLOR=paint.fill,
                    BORDER="1",
                    COLOR=paint.border,
                    WIDTH="14",
                    HEIGHT="10",
                    FIXEDSIZE="TRUE",
                )
                + cell(font(f"  {bound}", size=10, bold=True))
                + cell(font(f"  {paint.meaning}", size=10, color=QUIET))
                + cell(font(f"  {part}", size=10, color=QUIET))
            )
    return table(rows, CELLPADDING="1") if rows else ""


def _scoreboard(report: Report) -> str:
    return table(list(_scoreboard_rows(report)), CELLPADDING="1")


def _scoreboard_rows(report: Report) -> Iterator[str]:
    for row in scoreboard_rows(report):
        yield (
            cell(font(row.label, size=10, color=QUIET))
            + cell(font(f"  {row.value}", size=10, bold=True), ALIGN="RIGHT")
            + cell(font(f"  {row.detail}", size=10, color=QUIET))
        )
