from __future__ import annotations

import json
from pathlib import Path

import pytest

from optrace.diagnosis.compare import compare
from optrace.rendering import RenderError, diff
from optrace.rendering.diff import Titled, diff_json, figure_changes, notes, render_diff, series
from optrace.rendering.errors import LayoutTooSlowError
from optrace.rendering.figures import difference, relative
from tests.rendering.by_hand import HandGraph


@pytest.fixture
def sides() -> tuple[Titled, Titled]:
    """Three launches in one module; one of them gone and another come in the second run."""
    before, after = HandGraph("net.py"), HandGraph("net.py")
    for hand, ops in ((before, ("sin", "cos", "exp")), (after, ("sin", "exp", "tanh", "abs"))):
        last = hand.tensor((4, 8), name="x")
        for op in ops:
            out = hand.tensor((4, 8))
            hand.call(f"aten.{op}.default", [last], [out], module="Net.a", cls="A", read=128, written=128)
            last = out
    return Titled("one", before.report()), Titled("<two>", after.report())


def test_the_figures_change(sides: tuple[Titled, Titled]) -> None:
    one, two = sides
    rows = {row.label: row for row in figure_changes(compare(one.report, two.report))}
    launches = rows["launches"]
    assert (launches.before, launches.after, launches.change, launches.percent) == ("3", "4", "+1", "+33 %")
    assert rows["HBM traffic"].change == "+256 B"
    assert rows["device time"].before == "~6 us"
    assert rows["device time"].change == "~+2 us"
    assert rows["syncs"].percent == ""


def test_a_figure_that_leaves_calls_out_says_so() -> None:
    hand = HandGraph()
    hand.chain(2)
    hand.call("vendor.norm.default", [0], [], kernels=None, device_us=None, flops=None, source="unknown")
    (row,) = series([Titled("run", hand.report())])
    assert row.figures["launches"] == "2 + ?"
    assert row.figures["wall_us"].endswith(" + ?")
    assert row.figures["peak_bytes"] == "1.5 KiB"  # three tensors of 16 bytes, in blocks of 512


def test_the_document_holds_every_change_with_its_calls(sides: tuple[Titled, Titled]) -> None:
    one, two = sides
    document = json.loads(diff_json(compare(one.report, two.report), one, two))
    assert document["before"]["title"] == "one"
    assert document["before"]["launches"] == 3
    assert document["change"]["launches"] == 4 - 3
    assert document["calls"] == {"before": 3, "after": 4, "aligned": 2, "same": 2}
    assert {(c["kind"], c["op"], *c["before"], *c["after"]) for c in document["changes"]} == {
        ("went", "aten.cos.default", 1),
        ("came", "aten.tanh.default", 2),
        ("came", "aten.abs.default", 3),
    }


@pytest.mark.parametrize("suffix", [".json", ".dot", ".svg"])
def test_a_comparison_is_written_by_suffix(sides: tuple[Titled, Titled], tmp_path: Path, suffix: str) -> None:
    one, two = sides
    file = tmp_path / f"diff{suffix}"
    render_diff(compare(one.report, two.report), one, two, file)
    text = file.read_text()
    assert "aten.cos.default" in text
    assert "aten.tanh.default" in text
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_the_picture_draws_what_went_beside_what_came_and_escapes_titles(
    sides: tuple[Titled, Titled], golden: object
) -> None:
    one, two = sides
    from optrace.rendering.diff_picture import dot_source

    source = dot_source(compare(one.report, two.report), one.report, two.report, one.title, two.title)
    assert "&lt;two&gt;" in source
    golden("diff.dot", source)  # type: ignore[operator]


def test_no_picture_of_an_unknown_kind(sides: tuple[Titled, Titled], tmp_path: Path) -> None:
    one, two = sides
    with pytest.raises(RenderError, match=r"a comparison is no \.html \(one of \.dot, \.json"):
        render_diff(compare(one.report, two.report), one, two, tmp_path / "diff.html")
    assert list(tmp_path.iterdir()) == []


def test_sides_that_were_recorded_otherwise_are_told() -> None:
    one, two = HandGraph(steps=1), HandGraph(steps=2)
    one.chain(2)
    two.chain(2)
    a, b = Titled("a", one.report()), Titled("b", two.report())
    assert notes(a, b, compare(a.report, b.report)) == ("steps recorded: 1 (a) and 2 (b)",)


def test_signs_and_percents() -> None:
    assert difference("wall_us", -12.0) == "~-12 us"
    assert difference("hbm_bytes", 2_000_000) == "+2 MB"
    assert relative(1000, 1004) == "+0.4 %"
    assert relative(100, 25) == "-75 %"


def test_a_comparison_that_takes_long_to_lay_out_is_drawn_with_fewer_changes(
    sides: tuple[Titled, Titled], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lay_out(source: str, format: str, timeout_s: float) -> bytes:
        if source.count("+ aten.") + source.count("- aten.") > 1:
            raise LayoutTooSlowError("too slow")
        return source.encode()

    monkeypatch.setattr(diff, "lay_out", lay_out)
    monkeypatch.setattr(diff, "layout_program", lambda format: None)
    one, two = sides
    render_diff(compare(one.report, two.report), one, two, tmp_path / "diff.svg")
    assert "2 smaller changes are not drawn" in (tmp_path / "diff.svg").read_text()
    monkeypatch.setattr(diff, "lay_out", lambda *_: lay_out("+ aten.a + aten.b", "svg", 1.0))
    with pytest.raises(RenderError, match="too slow"):
        render_diff(compare(one.report, two.report), one, two, tmp_path / "other.svg")
