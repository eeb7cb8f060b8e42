"""A page of a measured run: colours by error of prediction, measured times beside predicted ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from optrace.rendering import Validation, render
from optrace.rendering.validation import SHADES
from tests.rendering.by_hand import HandGraph


def measured_page(folder: Path) -> Path:
    """Two calls of 1 us each; the first was measured to take twice that."""
    hand = HandGraph()
    x = hand.tensor((64, 64))
    for op in ("aten.relu.default", "aten.tanh.default"):
        y = hand.tensor((64, 64))
        hand.call(op, [x], [y], device_us=1.0)
        x = y
    file = folder / "measured.html"
    render(hand.report(), file, measured=Validation("a GPU", (2.0, 1.0), 5.0))
    return file


def colours(opened: Any) -> set[str]:
    """Those that fill the graph's nodes."""
    return set(
        opened.page.evaluate(
            """() => {
                const canvas = document.querySelector("#graph-place canvas");
                const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                const counts = new Map();
                for (let at = 0; at < data.length; at += 4) {
                    const hex = "#" + [0, 1, 2].map((i) => data[at + i].toString(16).padStart(2, "0")).join("");
                    counts.set(hex, (counts.get(hex) ?? 0) + 1);
                }
                return [...counts].filter(([, count]) => count > 500).map(([hex]) => hex);
            }"""
        )
    )


def test_nodes_are_coloured_by_error(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(measured_page(tmp_path), color_scheme="light")
    too_fast = SHADES[0].fill
    assert too_fast not in colours(opened)
    opened.page.select_option("#colour-by", "error")
    opened.settle()
    assert too_fast in colours(opened)
    assert opened.page.locator("#graph-tools .legend .swatch").count() == len(SHADES)


def test_measured_times_stand_beside_predicted_ones(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(measured_page(tmp_path))
    assert "a GPU: wall clock 5 us" in opened.page.inner_text("#panel")
    opened.tab("tables")
    opened.page.select_option("#table-by", "call")
    opened.settle()
    titles = [
        title.strip(" \u25bc\u25b2")
        for title in opened.page.locator("#tables-place .grid-head > *").all_inner_texts()
    ]
    rows = [
        dict(zip(titles, row.locator("[role=gridcell]").all_inner_texts(), strict=True))
        for row in opened.page.locator("#tables-place .grid-row").all()
    ]
    assert [row["measured"] for row in rows] == ["2 us", "1 us"]
    for row, measured_us in zip(rows, (2.0, 1.0), strict=True):
        predicted_us = float(row["device"].removeprefix("~").removesuffix(" us"))
        percent = float(row["error"].replace("\u2212", "-").removesuffix(" %"))
        assert percent == pytest.approx(100 * (predicted_us / measured_us - 1), abs=1.5)
    strong = opened.page.locator("#tables-place .grid-row .strong").first
    assert strong.evaluate("cell => getComputedStyle(cell).fontWeight") == "700"


def test_a_page_of_no_measurement_offers_no_error(tmp_path: Path, open_page: Any) -> None:
    hand = HandGraph()
    hand.call("aten.relu.default", [hand.tensor((4,))], [hand.tensor((4,))], device_us=1.0)
    render(hand.report(), tmp_path / "plain.html")
    opened = open_page(tmp_path / "plain.html")
    assert opened.page.locator("#colour-by option[value=error]").count() == 0
