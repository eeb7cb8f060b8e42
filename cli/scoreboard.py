"""``optrace scoreboard``: recorded graphs as a series, a line each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from .console import console, show
from .errors import tell
from .recorded import read_titled

if TYPE_CHECKING:
    from optrace.rendering.diff import Titled

app = typer.Typer(add_completion=False, rich_markup_mode=None)

#: Figures of a line that also say how much they differ from the first line's.
_COLUMNS = ("launches", "hbm_bytes", "peak_bytes", "syncs", "host_us", "device_us", "wall_us")


@app.command()
def scoreboard(
    files: Annotated[list[Path], typer.Argument(metavar="GRAPH.json ...", help="graph.json files, in order")],
    title: Annotated[
        list[str] | None,
        typer.Option("--title", metavar="TEXT", help="of each file, in order  [default: the files' names]"),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="price all for this GPU  [default: as recorded]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """A line a recorded graph, each with its difference to the first: passes over one program, line by line.

    optrace scoreboard eager.json fused.json graphed.json
    """
    from optrace.rendering.diff import differences, series_json

    runs = read_titled(files, title or [], gpu)
    if json:
        print(series_json(runs).decode(), end="")
    else:
        show(console(), _table(runs))
    for text in dict.fromkeys(text for run in runs[1:] for text in differences(runs[0], run)):
        tell(text)


def _table(runs: list[Titled]) -> Table:
    from optrace.rendering.diff import series
    from optrace.rendering.figures import FIGURES

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for _ in range(2 * len(_COLUMNS)):
        table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True)
    heading = [text for name in _COLUMNS for text in (FIGURES[name].label, "")]
    table.add_row("", *heading, "bottleneck", style="bright_black")
    for row in series(runs):
        cells = [text for name in _COLUMNS for text in (row.figures[name], row.percent[name])]
        table.add_row(row.title, *cells, row.bottleneck)
    return table
