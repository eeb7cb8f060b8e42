"""How notebooks show a report and a graph.

A report is the page in a frame. Where a notebook is only looked at (GitHub, an untrusted one in Jupyter), style and
frames are taken out of it; the still picture that the style would hide is then what is seen.
"""

from __future__ import annotations

import base64
from html import escape

from optrace.cost.profiles import pricing
from optrace.graph import OpGraph
from optrace.rendering import layout
from optrace.rendering.errors import RenderError
from optrace.rendering.options import DrawOptions
from optrace.rendering.page.html import render
from optrace.rendering.scoreboard import verdict_line
from optrace.report import Report
from optrace.report import report as price

#: A still picture is folded further than one that can be zoomed.
_STILL = DrawOptions(max_nodes=60, layout_timeout_s=10.0)


def report_bundle(report: Report) -> dict[str, str]:
    """A report by MIME type, for ``_repr_mimebundle_``: the page in a frame, the picture for readers that take no HTML
    (PNG, base64; left out where it cannot be laid out here), the verdict for those that take neither."""
    picture = _still(report)
    bundle = {"text/plain": verdict_line(report), "text/html": _framed(report, picture)}
    return bundle | {"image/png": picture} if picture else bundle


def report_html(report: Report) -> str:
    """The page in a frame, and a still picture for readers that show no frames."""
    return _framed(report, _still(report))


def _framed(report: Report, picture: str) -> str:
    page = render(report, DrawOptions()).data.decode()
    verdict = escape(verdict_line(report))
    still = f'<img alt="op graph" src="data:image/png;base64,{picture}">' if picture else ""
    return (
        "<style>.optrace-still { display: none }</style>"
        f'<div class="optrace-still"><p>{verdict}</p>{still}</div>'
        f'<iframe title="optrace report" srcdoc="{escape(page)}" sandbox="allow-scripts allow-downloads" '
        'allow="clipboard-write; fullscreen" loading="lazy" '
        'style="width: 100%; height: 780px; border: 1px solid #8888; border-radius: 6px"></iframe>'
    )


def graph_svg(graph: OpGraph) -> str | None:
    """The op graph as a picture; None where it cannot be laid out here, and nothing is drawn."""
    priced = price(graph, pricing(graph.info.gpu) if graph.info.gpu else pricing())
    try:
        return layout.render_svg(priced, _STILL).data.decode()
    except RenderError:
        return None


def _still(report: Report) -> str:
    """The picture as base64; empty where it cannot be laid out here."""
    try:
        return base64.b64encode(layout.render_png(report, _STILL).data).decode()
    except RenderError:
        return ""
