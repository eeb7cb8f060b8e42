"""What is shown while a long trace runs: on stderr, on a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner


@contextmanager
def progress(count: Callable[[], int], console: Console) -> Iterator[None]:
    """Show how many ops were recorded so far, four times a second, and leave no trace of it.

    The program's own output passes by untouched.
    """
    if not console.is_terminal:
        yield
        return
    spinner = Spinner("dots")

    def shown() -> Spinner:
        spinner.update(text=f"{count():,} ops recorded")
        return spinner

    with Live(
        get_renderable=shown,
        console=console,
        refresh_per_second=4,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        yield
