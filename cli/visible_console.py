"""A console whose terminal obeys nothing that is in the names of a program, of its files and of its modules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from optrace.visible import visible


class VisibleConsole(Console):
    """Writes control characters of what is printed as escapes; those of rich's own pass."""

    def render_str(self, text: str, **options: Any) -> Text:
        """A text, measured as it will be shown."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The pieces of what is printed, those of texts that came ready made too."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=visible(segment.text))
