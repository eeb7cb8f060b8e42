"""What is said while a command runs: results to stdout, warnings and progress to stderr, or none of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from .console import console
from .errors import tell

if TYPE_CHECKING:
    from optrace.report import Report


class Speaker:
    """Says everything, or with ``quiet`` nothing. Errors do not pass through here: they are always told."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def line(self, text: str) -> None:
        if not self._quiet:
            print(text, flush=True)

    def warning(self, text: str) -> None:
        if not self._quiet:
            tell(text)

    def report(self, report: Report, top: int) -> None:
        """The scoreboard, and what its figures leave out."""
        if self._quiet:
            return
        from .summary import show_report, warnings

        show_report(console(), report, top=top)
        for text in warnings(report):
            tell(text)

    def progress(self, count: Callable[[], int]) -> AbstractContextManager[None]:
        """Show a growing count while the context is active."""
        if self._quiet:
            return nullcontext()
        from .progress import progress

        return progress(count, console(sys.stderr))
