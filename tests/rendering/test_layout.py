from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from optrace.rendering import RenderError, layout, render, render_bytes
from optrace.rendering.errors import LayoutTooSlowError
from tests.rendering.by_hand import HandGraph


@pytest.fixture
def no_system_dot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder as the whole PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(folder: Path, text: str, name: str = "dot") -> Path:
    """A program in Python, found on the PATH of ``no_system_dot``."""
    file = folder / name
    file.write_text(f"#!{sys.executable} -S\nimport sys, time\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def test_the_system_s_dot_comes_first(no_system_dot: Path, toy: HandGraph) -> None:
    dot = program(no_system_dot, "sys.stdout.write('drawn with ' + sys.argv[1])")
    assert layout.layout_program("svg") == dot
    assert render_bytes(toy.report(), "pdf") == b"drawn with -Tpdf"


def test_without_it_the_wheel_s_program_draws(no_system_dot: Path, toy: HandGraph) -> None:
    assert layout.layout_program("svg").name.startswith("graphviz-pure")
    assert render_bytes(toy.report(), "svg").startswith(b"<?xml")
    assert render_bytes(toy.report(), "png").startswith(b"\x89PNG")


def test_pdf_needs_the_system_s_dot(no_system_dot: Path, toy: HandGraph, tmp_path: Path) -> None:
    with pytest.raises(
        RenderError, match=r"cannot write .*graph.pdf: pdf needs Graphviz's own dot on the PATH"
    ):
        render(toy.report(), tmp_path / "graph.pdf")
    assert not (tmp_path / "graph.pdf").exists()


def test_no_layout_program_at_all(
    no_system_dot: Path, toy: HandGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "_bundled_places", lambda: iter([tmp_path / "absent"]))
    with pytest.raises(
        RenderError, match=r"needs a layout program and there is none.*pip install graphviz-pure"
    ):
        render(toy.report(), tmp_path / "graph.svg")
    assert not (tmp_path / "graph.svg").exists()
    for format in ("dot", "json", "txt"):
        assert render_bytes(toy.report(), format)


def test_a_program_that_fails_is_quoted(no_system_dot: Path, toy: HandGraph, tmp_path: Path) -> None:
    program(no_system_dot, "sys.exit('no such plugin')")
    with pytest.raises(RenderError, match="failed: no such plugin"):
        render(toy.report(), tmp_path / "graph.svg")
    assert [file.name for file in tmp_path.iterdir()] == ["bin"]


def test_a_program_that_gives_nothing_failed(no_system_dot: Path, toy: HandGraph) -> None:
    program(no_system_dot, "sys.stdin.read()")
    with pytest.raises(RenderError, match="no output"):
        render_bytes(toy.report(), "svg")


def test_a_slow_layout_is_tried_coarser(no_system_dot: Path, tmp_path: Path) -> None:
    # Draws nothing with more than three nodes.
    program(
        no_system_dot,
        "source = sys.stdin.read()\nif source.count('tooltip=\"%') > 3: time.sleep(60)\nprint(source)",
    )
    hand = HandGraph()
    for number in range(8):
        hand.chain(4, f"aten.op{number}.default", line=number)
    notes = render(hand.report(), tmp_path / "graph.svg", layout_timeout_s=1.0)
    assert notes[0] == "The layout of 32 nodes took longer than 1 s, so the picture is drawn coarser."
    assert notes[1].startswith("32 calls drawn as 8 nodes")
    assert notes[0].split(",")[0] in (tmp_path / "graph.svg").read_text()


def test_a_layout_that_never_ends_is_an_error(no_system_dot: Path, tmp_path: Path, toy: HandGraph) -> None:
    program(no_system_dot, "time.sleep(60)")
    with pytest.raises(
        RenderError, match=r"did not lay the picture out within 0.2 s.*write .dot, .json or .txt"
    ):
        render(toy.report(), tmp_path / "graph.svg", layout_timeout_s=0.2)
    with pytest.raises(LayoutTooSlowError):
        layout.lay_out("digraph {}", "svg", 0.2)
    assert not (tmp_path / "graph.svg").exists()


def test_the_wheel_s_program_in_a_target_folder(
    no_system_dot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``pip install --target DIR`` puts it into DIR/bin and lists it as ../../bin."""
    listing = tmp_path / "site" / "graphviz_pure-0.2.2.dist-info"
    listing.mkdir(parents=True)
    (listing / "METADATA").write_text("Metadata-Version: 2.1\nName: graphviz-pure\nVersion: 0.2.2\n")
    (listing / "RECORD").write_text("../../bin/graphviz-pure,,\n")
    moved = tmp_path / "site" / "bin" / "graphviz-pure"
    moved.parent.mkdir()
    moved.touch()
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert layout.layout_program("svg") == moved
