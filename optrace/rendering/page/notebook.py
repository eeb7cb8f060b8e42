"""How notebooks show a report and a graph.

A report is the page in a frame. Where a notebook is only looked at (GitHub, an untrusted one in Jupyter), style and
frames are taken out of it; the still picture that the style would hide is then what is seen.
"""

from __future__ import annotations

import base64
from html import escape

from optrace.rendering import layout
from optrace.rendering.errors import RenderError
from optrace.rendering.options import DrawOptions
from optrace.rendering.page.html import render
from optrace.rendering.scoreboard import verdict_line
from optrace.report import Report

#: A still picture is folded further than one that can be zoomed.
_STILL_NODES = 60
_STILL_TIMEOUT_S = 10.0


def report_html(report: Report) -> str:
    """The page in a frame, and a still picture for readers that show no frames."""
    page = render(report, DrawOptions()).data.decode()
    verdict = escape(verdict_line(report))
    return (
        "<style>.optrace-still { display: none }</style>"
        f'<div class="optrace-still"><p>{verdict}</p>{_still(report)}</div>'
        f'<iframe title="optrace report" srcdoc="{escape(page)}" sandbox="allow-scripts allow-downloads" '
        'allow="clipboard-write; fullscreen" loading="lazy" '
        'style="width: 100%; height: 780px; border: 1px solid #8888; border-radius: 6px"></iframe>'
    )


def report_svg(report: Report) -> str | None:
    """The op graph as a picture; None where it cannot be laid out here."""
    try:
        options = DrawOptions(max_nodes=_STILL_NODES, layout_timeout_s=_STILL_TIMEOUT_S)
        return layout.render_svg(report, options).data.decode()
    except RenderError:
        return None


def _still(report: Report) -> str:
    try:
        options = DrawOptions(max_nodes=_STILL_NODES, layout_timeout_s=_STILL_TIMEOUT_S)
        picture = layout.render_png(report, options).data
    except RenderError:
        return ""
    return f'<img alt="op graph" src="data:image/png;base64,{base64.b64encode(picture).decode()}">'
