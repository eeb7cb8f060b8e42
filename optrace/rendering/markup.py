"""Text of a program made safe for DOT: it is shown, whatever it holds, and never run or interpreted."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable

import graphviz

from optrace.visible import visible


def shortened(text: str, letters: int = 60) -> str:
    """A long name for a label, its end kept; tooltips show it whole."""
    return text if len(text) <= letters else f"...{text[3 - letters :]}"


def shortened_end(text: str, letters: int = 60) -> str:
    """A long sentence for a label, its beginning kept."""
    return text if len(text) <= letters else f"{text[: letters - 3]}..."


def plain(text: str) -> str:
    """A plain DOT string, for tooltips: no escape sequences, no entities, no HTML label."""
    quoted: str = graphviz.escape(visible(text).replace("&", "&amp;"))
    return quoted


def markup(text: str) -> str:
    """Text inside an HTML-like label; line breaks align left."""
    return html.escape(visible(text)).replace("\n", '<BR ALIGN="LEFT"/>')


def font(text: str, *, size: float | None = None, color: str = "", bold: bool = False) -> str:
    """Text in an HTML-like label with a look of its own; empty for no text (DOT has no empty fonts)."""
    if not text:
        return ""
    inner = f"<B>{markup(text)}</B>" if bold else markup(text)
    attributes = [f'POINT-SIZE="{size:g}"' if size else "", f'COLOR="{color}"' if color else ""]
    chosen = " ".join(attribute for attribute in attributes if attribute)
    return f"<FONT {chosen}>{inner}</FONT>" if chosen else inner


def paragraph(text: str, columns: int) -> str:
    """Text broken into lines; the last break keeps the last line to the left as well."""
    return "\n".join(textwrap.wrap(text, columns, break_on_hyphens=False)) + "\n"


def table(rows: Iterable[str], **attributes: str) -> str:
    """An HTML-like table without border unless ``attributes`` give one."""
    chosen = {"BORDER": "0", "CELLBORDER": "0", "CELLSPACING": "0", "CELLPADDING": "0", **attributes}
    text = " ".join(f'{name}="{value}"' for name, value in chosen.items())
    return f"<TABLE {text}>{''.join(f'<TR>{row}</TR>' for row in rows)}</TABLE>"


def cell(content: str, **attributes: str) -> str:
    """A table cell, its text to the left unless ``attributes`` say otherwise."""
    chosen = {"ALIGN": "LEFT", "BALIGN": "LEFT", **attributes}
    text = " ".join(f'{name}="{value}"' for name, value in chosen.items())
    return f"<TD {text}>{content}</TD>"
