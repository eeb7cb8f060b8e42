"""A report in a notebook is the page in a frame, a graph a picture; a reader without frames sees a still one."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.page.programs import HOSTILE, hostile


def test_a_report_is_the_page_in_a_frame(toy: Path, page_of: Any, browser: Any, tmp_path: Path) -> None:
    report, _ = page_of(toy)
    cell = report._repr_html_()
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><body>{cell}</body>")
    page = browser.new_page()
    page.goto(notebook.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("html[data-ready=true]").wait_for(timeout=60_000)
    assert frame.locator("#program").inner_text() == "toy_block.py:model"
    assert float(frame.locator("#out-plain-kernels").get_attribute("data-value") or 0) == 5
    assert not page.is_visible(".optrace-still")
    page.close()


def test_without_style_and_frames_a_still_picture_is_left(toy: Path, page_of: Any) -> None:
    report, _ = page_of(toy)
    still = report._repr_html_().partition("<iframe")[0].partition("</style>")[2]
    assert report.verdict.sentence in still
    assert '<img alt="op graph" src="data:image/png;base64,' in still


def test_program_text_does_not_leave_the_frame() -> None:
    cell = hostile()._repr_html_()
    assert HOSTILE not in cell


def test_a_graph_is_a_picture(toy: Path, page_of: Any) -> None:
    report, _ = page_of(toy)
    picture = report.graph._repr_svg_()
    assert picture is not None
    assert "gelu" in picture
    assert ElementTree.fromstring(picture).tag.endswith("svg")
