"""The legend of the picture: program, verdict, where the wall clock goes, scoreboard, what colours mean."""

from __future__ import annotations

from collections.abc import Iterator

from optrace import units
from optrace.diagnosis import Bound
from optrace.rendering import findings
from optrace.rendering.cures import blocker_lines, legend_rows
from optrace.rendering.markup import cell, font, paragraph, table
from optrace.rendering.palette import INK, PAINT, QUIET
from optrace.rendering.scoreboard import missing_figures, provenance, scoreboard_rows, verdict_line
from optrace.report import Report

#: Points, of the bar and of the three columns of figures under it.
_WIDTH = 600
_COLUMN_WIDTHS = (100, 76, 424)

#: Findings that the legend names.
_FINDINGS = 6

#: Letters a line of a paragraph, by point size: an average Helvetica letter is half as wide as high.
_LETTERS = {12: 98, 10: 118, 9: 130}

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
    traced = f"{info.mode} trace, torch {info.torch}" if info.torch else f"{info.mode} trace"
    blocks = [
        font(info.program or "program", size=18, bold=True) + font(f"   {traced}", size=10, color=QUIET),
        _text(verdict_line(report), 12, INK),
        _bar(report),
        table([*_keys(report), cell("", HEIGHT="6"), *_scoreboard(report)], CELLPADDING="1"),
        *(_text(line, 10, INK) for line in blocker_lines(report)),
        _text("\n".join(_findings(report)), 10, INK),
        *(_text(note, 10, INK) for note in notes),
        *(_text(f"{units.UNKNOWN} {line}", 10, INK) for line in missing_figures(report)),
        "" if report.verdict.idle else _text("\n".join(provenance(report)), 9, QUIET),
    ]
    return f"<{table((cell(block) for block in blocks if block), CELLPADDING='4')}>"


def _findings(report: Report) -> Iterator[str]:
    """The findings that weigh most; none where there are none."""
    found = [finding for finding in report.findings if finding.severity != "low"][:_FINDINGS]
    if report.findings:
        yield findings.headline(report.findings)
    yield from (f"  {findings.one_line(finding)}" for finding in found)


def _text(text: str, size: int, color: str) -> str:
    return font("".join(paragraph(line, _LETTERS[size]) for line in text.split("\n")), size=size, color=color)


def _bar(report: Report) -> str:
    """The wall clock as one bar, cut by cause."""
    wall = report.timeline.wall_us
    if not wall or report.verdict.idle:
        return ""
    cells = []
    total = 0
    for bound, figure in _BAR:
        part = getattr(report.verdict, figure) / wall
        width = round(part * _WIDTH)
        if width >= 2:
            label = font(units.share(part), size=9, color=PAINT[bound].text) if width >= 34 else ""
            look = {"ALIGN": "CENTER", "WIDTH": str(width), "HEIGHT": "16", "FIXEDSIZE": "TRUE"}
            fill = PAINT[bound].border if bound == "host" else PAINT[bound].fill  # white would be no bar
            cells.append(cell(label, BGCOLOR=fill, **look))
            total += width
    # Of a fixed size: a table that fills a wider place has its cells spread out.
    return table(["".join(cells)], ALIGN="LEFT", WIDTH=str(total), HEIGHT="16", FIXEDSIZE="TRUE")


def _keys(report: Report) -> Iterator[str]:
    """A swatch for each bound that the run has, its part of the wall clock, and what it means."""
    wall = 0.0 if report.verdict.idle else report.timeline.wall_us
    shares = {bound: getattr(report.verdict, figure) / wall if wall else 0.0 for bound, figure in _BAR}
    present = set(report.bounds)
    for bound, paint in PAINT.items():
        if bound in present or shares.get(bound):
            swatch = cell(
                "",
                BGCOLOR=paint.fill,
                BORDER="1",
                COLOR=paint.border,
                WIDTH="22",
                HEIGHT="10",
                FIXEDSIZE="TRUE",
            )
            name = table([swatch + cell(font(f" {bound}", size=10, color=INK), WIDTH="74")])
            part = units.share(shares[bound]) if shares.get(bound) else ""
            yield _row(name, part, _meaning(bound, bool(part)))


def _meaning(bound: Bound, has_part: bool) -> str:
    """What the colour says in the bar and on a node: the same but for ``host``, which is no node's cause."""
    if not has_part:
        return PAINT[bound].meaning
    if bound == "host":
        return f"of the wall clock: the host after the last kernel; a node: {PAINT[bound].meaning}"
    return f"of the wall clock: {PAINT[bound].meaning}"


def _scoreboard(report: Report) -> Iterator[str]:
    for row in scoreboard_rows(report):
        yield _row(font(row.label, size=10, color=QUIET), row.value, row.detail)
    for label, value, detail in legend_rows(report):
        yield _row(font(label, size=10, color=QUIET), value, detail)


def _row(label: str, value: str, detail: str) -> str:
    """A label (markup), and a value and a detail (text)."""
    widths = [str(width) for width in _COLUMN_WIDTHS]
    return (
        cell(label, WIDTH=widths[0])
        + cell(font(value, size=10, color=INK) if value else "", WIDTH=widths[1], ALIGN="RIGHT")
        + cell(font(f"   {detail}", size=10, color=QUIET) if detail else "", WIDTH=widths[2])
    )
