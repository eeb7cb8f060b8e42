"""Data, script and style in one HTML file that asks the network for nothing.

All program text travels inside the packed data and is put into the page as text, never as markup; the
content security policy lets only the page's own script run.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from html import escape
from importlib import resources
from string import Template

from optrace.rendering.options import DrawOptions, Rendered
from optrace.rendering.page.document import document
from optrace.rendering.scoreboard import scoreboard_rows, verdict_line
from optrace.report import Report


def render(report: Report, options: DrawOptions) -> Rendered:
    """The page's bytes."""
    data, notes = document(report, options)
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = Template(_asset("page.html")).substitute(
        title=escape(f"optrace: {report.graph.info.program or 'a program'}"),
        script_hash=digest,
        script=script,
        style=_asset("page.css"),
        licences=escape(_asset("LICENCES.txt")),
        data=base64.b64encode(data).decode(),
        without_script=_without_script(report),
    )
    return Rendered(page.encode(), notes)


def _without_script(report: Report) -> str:
    """What a reader without JavaScript gets: verdict and scoreboard."""
    rows = "".join(
        f"<tr><th>{escape(row.label)}</th><td>{escape(row.value)}</td><td>{escape(row.detail)}</td></tr>"
        for row in scoreboard_rows(report)
    )
    return f"<p>{escape(verdict_line(report))}</p><table>{rows}</table><p>The views need JavaScript.</p>"


@cache
def _asset(name: str) -> str:
    return resources.files("optrace.rendering.page").joinpath("assets", name).read_text(encoding="utf-8")
