"""What is said while a command runs: results to stdout, warnings and progress to stderr, or none of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from optrace.visible import visible

from .console import console, show
from .errors import tell

if TYPE_CHECKING:
    from rich.console import RenderableType

    from optrace.report import Report


class Speaker:
    """Says everything, or with ``quiet`` nothing. Errors do not pass through here: they are always told.

    A reader of stdout who has gone (``| head``) does not stop the work: there may be files to write.
    """

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def line(self, text: str) -> None:
        if not self._quiet:
            with self._while_somebody_reads():
                print(visible(text), flush=True)

    def warning(self, text: str) -> None:
        if not self._quiet:
            tell(text)

    def progress_line(self, text: str) -> None:
        """A stage that begins, on stderr."""
        if not self._quiet:
            print(visible(text), file=sys.stderr, flush=True)

    def report(self, report: Report, top: int, *, findings: bool = False) -> None:
        """The scoreboard, with ``findings`` what is worth changing, and what the figures leave out."""
        if self._quiet:
            return
        from .summary import show_findings, show_report, warnings

        with self._while_somebody_reads():
            show_report(console(), report, top=top)
            if findings:
                show_findings(console(), report)
            sys.stdout.flush()
        for text in warnings(report):
            self.warning(text)

    def show(self, *renderables: RenderableType) -> None:
        """Print results."""
        if not self._quiet:
            with self._while_somebody_reads():
                for renderable in renderables:
                    show(console(), renderable)
                sys.stdout.flush()

    def progress(self, count: Callable[[], int]) -> AbstractContextManager[None]:
        """Show a growing count while the context is active."""
        if self._quiet:
            return nullcontext()
        from .progress import progress

        return progress(count, console(sys.stderr))

    @contextmanager
    def _while_somebody_reads(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            self._quiet = True
            # What is still buffered has to go somewhere when Python closes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except ValueError:
            if not sys.stdout.closed:
                raise
            self._quiet = True  # the program closed it
