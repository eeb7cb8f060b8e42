"""Where the command prints: rich on a terminal; into a file or a pipe plain text, unwrapped.

rich is imported when something is printed with it: ``--help`` prints nothing with it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

#: Wide enough that plain text is never wrapped.
_PLAIN_WIDTH = 1000


def console(file: TextIO | None = None) -> Console:
    """A console on ``file`` (default: stdout as it is now)."""
    from .visible_console import VisibleConsole

    file = file or sys.stdout
    width = None if file.isatty() else _PLAIN_WIDTH
    return VisibleConsole(file=file, width=width, highlight=False, markup=False, emoji=False)


def show(out: Console, renderable: RenderableType) -> None:
    """Print; without the padding at the ends of lines where nobody sees it."""
    if out.is_terminal:
        out.print(renderable)
        return
    with out.capture() as captured:
        out.print(renderable)
    for line in captured.get().splitlines():
        print(line.rstrip(), file=out.file)


def table_of(*columns: str) -> Table:
    """An empty table under a row of its columns' names; all but the first are figures."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for number, _ in enumerate(columns):
        table.add_column(no_wrap=True, justify="right" if number else "left")
    table.add_row(*columns, style="bright_black")
    return table
