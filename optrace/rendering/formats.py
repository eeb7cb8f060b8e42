"""The table of formats: what the suffix lookup and its error read.

A new format is one module with a function ``Report, DrawOptions -> Rendered`` and one row here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from optrace.rendering import dot, graph_json, layout, page, text
from optrace.rendering.errors import RenderError
from optrace.rendering.exports import chrome_trace, model_explorer, networks, tables
from optrace.rendering.options import DrawOptions, Rendered
from optrace.report import Report


@dataclass(frozen=True, slots=True)
class Format:
    """How a suffix is written; ``needs_layout``: by a layout program."""

    render: Callable[[Report, DrawOptions], Rendered]
    needs_layout: bool = False


#: By the end of a file's name. Of several that fit, the longest counts: ``run.trace.json`` is no ``.json``.
FORMATS: Mapping[str, Format] = {
    ".csv": Format(tables.render_csv),
    ".dot": Format(dot.render),
    ".explorer.json": Format(model_explorer.render_graph),
    ".graphml": Format(networks.render_graphml),
    ".html": Format(page.render),
    ".json": Format(graph_json.render),
    ".nodedata.json": Format(model_explorer.render_node_data),
    ".nodelink.json": Format(networks.render_node_link),
    ".parquet": Format(tables.render_parquet),
    ".pdf": Format(layout.render_pdf, needs_layout=True),
    ".perfetto.json": Format(chrome_trace.render),
    ".png": Format(layout.render_png, needs_layout=True),
    ".svg": Format(layout.render_svg, needs_layout=True),
    ".trace.json": Format(chrome_trace.render),
    ".txt": Format(text.render),
}


def choices() -> str:
    """The suffixes that can be written, for an error or a help text."""
    return f"one of {', '.join(FORMATS)}"


def suffix_of(name: str) -> str:
    """The suffix that says the format of a file of this name; where none is known, what follows its last dot."""
    fitting = [suffix for suffix in FORMATS if name.lower().endswith(suffix) and len(name) > len(suffix)]
    return max(fitting, key=len) if fitting else PurePath(name).suffix


def format_of(suffix: str) -> Format:
    """The row of a suffix (``.svg`` or ``svg``, in any case); checked for what this machine lacks.

    Raises ``RenderError``.
    """
    key = "." + suffix.lower().removeprefix(".")
    if key not in FORMATS:
        said = f"no renderer for {suffix!r}" if suffix else "its name has no suffix to say the format"
        raise RenderError(f"{said} ({choices()})")
    row = FORMATS[key]
    if row.needs_layout:
        layout.layout_program(key.removeprefix("."))
    return row
