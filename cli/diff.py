"""``optrace diff``: what changed between two recorded graphs of one program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from optrace.visible import visible

from .console import console, show
from .errors import bad_input, tell
from .recorded import read_titled

if TYPE_CHECKING:
    from optrace.diagnosis.compare import Comparison
    from optrace.rendering.diff import Titled

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_STYLES = {"came": "green", "went": "red", "moved": "bright_blue", "changed": "yellow"}


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(metavar="A.json", help="a graph.json")],
    after: Annotated[
        Path, typer.Argument(metavar="B.json", help="a graph.json of the same program, changed")
    ],
    title: Annotated[
        list[str] | None,
        typer.Option("--title", metavar="TEXT", help="what to call A, then B  [default: the files' names]"),
    ] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option("--out", "-o", metavar="FILE", help="write .json .svg .png .pdf or .dot; repeatable"),
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", min=0, help="changes to print")] = 20,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="price both for this GPU  [default: as recorded]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Compare two recorded graphs: the scoreboard's change, and the ops that came, went or moved.

    Ops are aligned by module path, op and shape, not by their position.
    """
    from optrace.diagnosis.compare import NothingInCommonError, compare
    from optrace.rendering import RenderError
    from optrace.rendering.diff import check_diff_path, diff_json, notes, render_diff

    files = out or []
    with bad_input(RenderError):
        for file in files:
            check_diff_path(file)
    one, other = read_titled([before, after], title or [], gpu)
    with bad_input(NothingInCommonError):
        comparison = compare(one.report, other.report)
    if json:
        print(diff_json(comparison, one, other).decode(), end="")
    else:
        _print(comparison, one, other, top)
    for text in notes(one, other, comparison):
        tell(text)
    for file in files:
        with bad_input(RenderError):
            render_diff(comparison, one, other, file)
        if not json:
            print(visible(f"wrote {file}"))


def _print(comparison: Comparison, one: Titled, other: Titled, top: int) -> None:
    from optrace import units
    from optrace.rendering.diff import figure_changes

    out = console()
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right", "right", "right"):
        table.add_column(no_wrap=True, justify=justify)
    table.add_row("", one.title, other.title, "change", "", style="bright_black")
    for row in figure_changes(comparison):
        table.add_row(row.label, row.before, row.after, row.change, row.percent)
    show(out, table)
    show(out, "")
    show(
        out,
        f"{units.counted(comparison.aligned, 'call')} of {len(one.report.graph):,} and {len(other.report.graph):,} "
        f"align, {len(comparison.same):,} of them unchanged",
    )
    if comparison.changes and top:
        show(out, _changes(comparison, top))


def _changes(comparison: Comparison, top: int) -> Table:
    from optrace.rendering.figures import difference

    table = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "right", "right", "right", "right", "left", "left"):
        table.add_column(no_wrap=True, justify=justify)
    heading = ("", "op", "calls", "wall", "launches", "HBM", "gives", "where")
    table.add_row(*heading, style="bright_black")
    launching = [change for change in comparison.changes if change.costs]
    for change in launching[:top]:
        origin = f" (from {change.moved_from or 'no module'})" if change.kind == "moved" else ""
        table.add_row(
            Text(change.kind, style=_STYLES[change.kind]),
            change.op,
            f"{change.calls:,}",
            difference("wall_us", change.wall_us),
            difference("launches", change.launches),
            difference("hbm_bytes", change.hbm_bytes),
            change.shape,
            f"{change.module or 'no module'}, {change.phase}{origin}",
        )
    rest = launching[top:]
    if rest:
        table.add_row("", f"{len(rest):,} more", "", difference("wall_us", sum(c.wall_us for c in rest)))
    quiet = len(comparison.changes) - len(launching)
    if quiet:
        table.add_row("", f"{quiet:,} that cost nothing")
    table.add_row(
        "", "unchanged calls", f"{len(comparison.same):,}", difference("wall_us", comparison.same_wall_us)
    )
    return table
