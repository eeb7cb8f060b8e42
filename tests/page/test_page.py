"""What people do with the page, in a real browser: open it, search, open a layer, select, sort, tab through it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optrace.rendering import render
from optrace.report import Report
from tests.page.programs import HOSTILE, empty, hostile, many

VIEWS = ("graph", "timeline", "roofline", "memory", "tables", "source", "findings")


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Callable[[], Report]], Path]:
    """The page of a report made by hand; made once a session."""
    made: dict[Callable[[], Report], Path] = {}

    def written(program: Callable[[], Report]) -> Path:
        if program not in made:
            file = tmp_path_factory.mktemp("page") / "report.html"
            render(program(), file)
            made[program] = file
        return made[program]

    return written


def marked(opened: Any, place: str) -> int:
    """Pixels of a canvas in the colour of what is selected."""
    return int(
        opened.page.evaluate(
            """(place) => {
                const canvas = document.querySelector(`#${place}-place canvas`);
                const probe = document.createElement("canvas").getContext("2d");
                probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent");
                probe.fillRect(0, 0, 1, 1);
                const [r, g, b] = probe.getImageData(0, 0, 1, 1).data;
                const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                let found = 0;
                for (let at = 0; at < data.length; at += 4)
                    if (data[at] === r && data[at + 1] === g && data[at + 2] === b && data[at + 3] === 255) found++;
                return found;
            }""",
            place,
        )
    )


def hover_until(opened: Any, place: str, text: str) -> tuple[float, float]:
    """Move the pointer over a canvas until its tooltip begins with ``text``; where that is."""
    box = opened.page.locator(f"#{place}-place canvas").bounding_box()
    for y in range(6, int(box["height"]), 9):
        for part in (0.5, 0.4, 0.6, 0.3, 0.7):
            at = (box["x"] + box["width"] * part, box["y"] + y)
            opened.page.mouse.move(*at)
            tip = opened.page.locator(".tip")
            if tip.count() and tip.is_visible() and tip.inner_text().startswith(text):
                return at
    raise AssertionError(f"nothing in {place} is called {text}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("program", ["toy", "transformer", "many"])
def test_every_view_opens_and_axe_finds_nothing_serious(
    program: str, scheme: str, request: pytest.FixtureRequest, page_of: Any, written: Any, open_page: Any
) -> None:
    """No console line, error or request either: ``open_page`` sees to that."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    file = written(many) if program == "many" else page_of(request.getfixturevalue(program))[1]
    opened = open_page(file, color_scheme=scheme, bypass_csp=True)
    for view in VIEWS:
        opened.tab(view)
        found = axe.Axe().run(opened.page).response["violations"]
        serious = [
            f"{view}: {one['id']}: {node['html']} {node['failureSummary']}"
            for one in found
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]
        assert serious == []


def test_search_finds_by_op_module_shape_and_line(transformer: Path, page_of: Any, open_page: Any) -> None:
    report, file = page_of(transformer)
    opened = open_page(file)
    graph = report.graph
    names = [graph.facts(call).name for call in range(len(graph))]
    opened.page.keyboard.press("/")
    opened.page.keyboard.type("layer_norm_backward")
    calls = [call for call, name in enumerate(names) if "layer_norm_backward" in name]
    assert len(calls) == 2 * 4
    assert opened.page.inner_text("#result0").split("\n")[0] == f"all {len(calls)} calls"
    opened.page.keyboard.press("ArrowDown")
    opened.page.keyboard.press("Enter")
    assert opened.page.inner_text("#selection") == f"%{calls[0]} native_layer_norm_backward"
    for query, least in (("layers.2 linear1", 1), ("f32[8, 128, 1024]", 4), ("layers.py:11", 4)):
        opened.page.fill("#search", query)
        opened.page.press("#search", "Enter")
        opened.settle()
        assert int(opened.page.inner_text("#panel .quiet").split(" ")[0].replace(",", "")) >= least, query
    opened.page.fill("#search", "no such thing")
    assert opened.page.inner_text("#results") == "nothing found"


def test_a_layer_opens_by_click_and_by_key(transformer: Path, page_of: Any, open_page: Any) -> None:
    """Four equal layers are one node with a count."""
    _, file = page_of(transformer)
    opened = open_page(file)
    nodes = opened.page.locator("#graph-place canvas")
    before = int(nodes.get_attribute("data-nodes"))
    at = hover_until(opened, "graph", "forward.Layers.layers")
    opened.page.mouse.click(*at)
    opened.settle()
    after = int(nodes.get_attribute("data-nodes"))
    assert after > before
    assert "\u00d74" in opened.page.inner_text("#selection")
    opened.page.keyboard.press("Enter")
    opened.settle()
    assert int(nodes.get_attribute("data-nodes")) == before
    opened.page.keyboard.press("ArrowDown")
    opened.settle()
    assert "bound by" in opened.page.inner_text("#live")


def test_what_is_selected_in_one_view_is_marked_in_all(toy: Path, page_of: Any, open_page: Any) -> None:
    report, file = page_of(toy)
    opened = open_page(file)
    for place in ("graph", "timeline"):
        assert marked(opened, place) == 0
    opened.page.mouse.click(*hover_until(opened, "graph", "%2 aten.gelu.default"))
    opened.settle()
    assert opened.page.inner_text("#selection") == "%2 gelu"
    for place in ("graph", "timeline"):
        assert marked(opened, place) > 20
    for view in ("roofline", "memory"):
        opened.tab(view)
        assert marked(opened, view) > 20
    opened.tab("tables")
    assert opened.page.inner_text(".grid-row.selected [role=gridcell] >> nth=0") == "aten.gelu.default"
    opened.page.click("text=In the source")
    line = report.graph.source(2).line
    assert line is not None
    cells = opened.page.locator("#source-place .grid-row.selected [role=gridcell]")
    assert cells.nth(4).inner_text() == str(line.line)
    # And back: a line selects its calls.
    opened.page.click("#source-place .grid-row:has-text('h = x @ self.w')")
    opened.settle()
    assert opened.page.inner_text("#panel").split("\n")[0].startswith("toy_block.py:")
    opened.tab("graph")
    assert marked(opened, "graph") > 20


def test_a_row_that_is_painted_anew_while_it_is_pressed_is_clicked(
    toy: Path, page_of: Any, open_page: Any
) -> None:
    """A table paints by itself when scrolling has ended; what is under the pointer then stays the same element."""
    _, file = page_of(toy)
    opened = open_page(file)
    opened.tab("tables")
    row = opened.page.locator("#tables-place .grid-row", has_text="gelu")
    row.evaluate("(row) => { row.before = true; row.children[0].before = true; }")
    row.hover()
    opened.page.mouse.down()
    opened.page.evaluate(
        """() => new Promise((done) => {
            const body = document.querySelector("#tables-place .grid-body");
            let paints = 0; // one as scrolling begins, one some time after it has ended
            new MutationObserver(() => ++paints === 2 && done()).observe(body, { attributes: true, childList: true, subtree: true });
            body.parentElement.dispatchEvent(new Event("scroll"));
        })"""
    )
    opened.page.mouse.up()
    opened.settle()
    assert row.evaluate("(row) => row.before && row.children[0].before")
    assert opened.page.inner_text("#selection").endswith("gelu")


def test_the_search_stays_open_for_whoever_comes_back_to_it(toy: Path, page_of: Any, open_page: Any) -> None:
    _, file = page_of(toy)
    opened = open_page(file)
    opened.page.fill("#search", "gelu")
    opened.page.evaluate("() => { const at = document.activeElement; at.blur(); at.focus(); }")
    opened.page.wait_for_timeout(400)
    assert opened.page.is_visible("#results")
    opened.page.click("#result1")
    opened.settle()
    assert opened.page.inner_text("#selection") == "%2 gelu"
    assert opened.page.is_hidden("#results")


def test_findings_and_cures_select_the_calls_they_speak_of(
    transformer: Path, page_of: Any, open_page: Any
) -> None:
    report, file = page_of(transformer)
    opened = open_page(file)
    opened.tab("findings")
    shown = opened.page.inner_text("#view-findings")
    assert all(finding.title in shown for finding in report.findings)
    rows = opened.page.locator(".cures-table tbody tr")
    assert rows.count() == len(report.cures.rows)
    rows.nth(2).locator("button").click()
    opened.settle()
    assert opened.page.input_value("#knob-schedule") == "fused"
    assert opened.value("out-wall") == pytest.approx(report.cures.fused_row.wall_us, rel=1e-3)
    opened.page.click(".regions .grid-row >> nth=0")
    opened.settle()
    assert opened.page.inner_text("#selection").startswith("fused: ")
    assert marked(opened, "timeline") > 0


def test_tables_sort_and_copy(transformer: Path, page_of: Any, open_page: Any) -> None:
    report, file = page_of(transformer)
    opened = open_page(file, permissions=["clipboard-read", "clipboard-write"])
    opened.tab("tables")
    opened.page.click("[role=columnheader] >> text=launches")
    assert opened.page.get_attribute("[role=columnheader]:has-text('launches')", "aria-sort") == "descending"
    opened.page.click("#copy-csv")
    opened.page.wait_for_selector("#copy-csv:has-text('Copied')")
    lines = opened.page.evaluate("navigator.clipboard.readText()").split("\n")
    head, *rows = [line.split(",") for line in lines]
    column = head.index("launches")
    launches = [float(row[column]) for row in rows]
    assert launches == sorted(launches, reverse=True)
    assert sum(launches) == report.totals["launches"].value
    assert len(rows) == len(report.graph.ops)


def test_the_keyboard_reaches_everything_and_sees_where_it_is(
    toy: Path, page_of: Any, open_page: Any
) -> None:
    _, file = page_of(toy)
    opened = open_page(file)
    reached = []
    for _ in range(80):
        opened.page.keyboard.press("Tab")
        name, outline = opened.page.evaluate(
            """() => {
                const at = document.activeElement;
                const style = getComputedStyle(at);
                return [at.id || at.getAttribute("aria-label") || at.tagName, `${style.outlineStyle} ${style.outlineWidth}`];
            }"""
        )
        if name == "BODY" or name in reached[:1]:
            break
        reached.append(name)
        assert outline.startswith(("solid", "auto")), f"{name} has no visible focus"
        assert not outline.endswith(" 0px"), f"{name} has no visible focus"
    else:
        raise AssertionError("the focus never leaves the page")
    wanted = [
        "search",
        "theme",
        "help",
        "knob-gpu",
        "knob-dispatch",
        "knob-bandwidth",
        "small",
        "tab-graph",
        "colour-by",
    ]
    assert [name for name in reached if name in wanted] == wanted
    assert sum("Op graph" in name for name in reached) == 1
    assert sum("Timeline" in name for name in reached) == 1
    opened.page.focus("#tab-graph")
    opened.page.keyboard.press("ArrowRight")
    assert opened.page.get_attribute("#tab-timeline", "aria-selected") == "true"
    opened.page.focus("#timeline-place canvas")
    opened.page.keyboard.press("ArrowRight")
    opened.page.keyboard.press("ArrowRight")
    opened.settle()
    assert opened.page.inner_text("#selection") == "%1 add"
    opened.page.focus("#knob-dispatch")
    opened.page.keyboard.press("ArrowRight")
    opened.settle()
    assert opened.value("out-dispatch") == pytest.approx(4.1)


@pytest.mark.parametrize("view", VIEWS)
def test_program_text_is_shown_and_not_run(view: str, written: Any, open_page: Any) -> None:
    opened = open_page(written(hostile))
    opened.tab(view)
    opened.page.fill("#search", "evil")
    opened.page.press("#search", "Enter")
    opened.settle()
    assert opened.page.title() == f"optrace: {HOSTILE}"
    assert opened.page.locator("img").count() == 0
    assert opened.page.inner_text("#program") == HOSTILE
    assert HOSTILE in opened.page.inner_text("#panel")
    if view == "tables":
        assert HOSTILE in opened.page.inner_text("#tables-place")


def test_an_empty_program_opens(written: Any, open_page: Any) -> None:
    opened = open_page(written(empty))
    for view in VIEWS[:5]:
        opened.tab(view)
    assert opened.page.inner_text("#verdict") == "nothing was dispatched"
    assert not opened.page.is_visible("#tab-source")
    assert not opened.page.is_visible("#tab-findings")


@pytest.mark.parametrize("width", [360, 820])
def test_a_narrow_screen_scrolls_one_way(width: int, transformer: Path, page_of: Any, open_page: Any) -> None:
    _, file = page_of(transformer)
    opened = open_page(file, viewport={"width": width, "height": 740})
    for view in VIEWS:
        opened.tab(view)
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


def test_nothing_moves_while_it_loads(transformer: Path, page_of: Any, open_page: Any) -> None:
    _, file = page_of(transformer)
    opened = open_page(file)
    shift = opened.page.evaluate(
        """() => new Promise((done) => {
            let sum = 0;
            new PerformanceObserver((list) => {
                for (const entry of list.getEntries()) sum += entry.value;
            }).observe({ type: "layout-shift", buffered: true });
            setTimeout(() => done(sum), 300);
        })"""
    )
    # What the Web Vitals call good.
    assert shift < 0.1


def test_without_script_it_still_says_the_verdict(toy: Path, page_of: Any, browser: Any) -> None:
    report, file = page_of(toy)
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    shown = page.inner_text("body")
    context.close()
    assert report.verdict.sentence in shown
    assert "352 MB" in shown


def test_twenty_thousand_calls_open_small(written: Any) -> None:
    """One page, well under 3 MB of its own."""
    from optrace.rendering.page.html import _asset

    own = sum(len(_asset(name)) for name in ("page.js", "page.css", "page.html", "LICENCES.txt"))
    assert own < 400_000
    assert written(many).stat().st_size < 3_000_000
