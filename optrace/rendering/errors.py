"""The one way in which rendering fails."""

from __future__ import annotations


class RenderError(Exception):
    """A picture or file could not be made. The message says what failed, the value and the way out."""


class LayoutTooSlowError(RenderError):
    """The layout program did not finish in time; a coarser picture may."""
