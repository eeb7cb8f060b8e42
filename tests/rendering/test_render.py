from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optrace.rendering import FORMATS, RenderError, check_path, files, render, render_bytes
from tests.rendering.by_hand import HandGraph


@pytest.mark.parametrize("suffix", ["dot", "json", "png", "svg", "txt", "SVG"])
def test_each_format_is_written_by_suffix(suffix: str, toy: HandGraph, tmp_path: Path) -> None:
    file = tmp_path / f"graph.{suffix}"
    assert render(toy.report(), file) == []
    assert file.read_bytes() == render_bytes(toy.report(), suffix)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


ALL = rf"\(one of {', '.join(map(re.escape, FORMATS))}\)"


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("graph.gif", {}, RenderError, rf"cannot write .*graph\.gif: no renderer for '\.gif' {ALL}"),
        ("graph", {}, RenderError, rf"cannot write .*graph: its name has no suffix to say the format {ALL}"),
        (".svg", {}, RenderError, rf"cannot write .*\.svg: its name has no suffix to say the format {ALL}"),
        ("absent/graph.svg", {}, RenderError, r"cannot write .*graph\.svg: there is no folder .*absent"),
        ("folder.svg", {}, RenderError, r"cannot write .*folder\.svg: it is a folder"),
        ("graph.svg", {"depth": -1}, ValueError, "depth counts module levels and cannot be -1"),
        ("graph.svg", {"max_nodes": 0}, ValueError, "max_nodes is a number of nodes and cannot be 0"),
        ("graph.svg", {"layout_timeout_s": 0.0}, ValueError, "layout_timeout_s is a time in seconds"),
    ],
)
def test_what_cannot_be_written(
    name: str, options: dict[str, Any], error: type[Exception], message: str, toy: HandGraph, tmp_path: Path
) -> None:
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(error, match=message):
        render(toy.report(), tmp_path / name, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.svg"]


def test_an_unknown_format_by_name(toy: HandGraph) -> None:
    with pytest.raises(RenderError, match=rf"cannot render gif: no renderer for '\.?gif' {ALL}"):
        render_bytes(toy.report(), "gif")


def test_a_path_can_be_checked_before_the_work(tmp_path: Path) -> None:
    assert check_path(tmp_path / "graph.json") is FORMATS[".json"]
    with pytest.raises(RenderError, match="no renderer"):
        check_path(tmp_path / "graph.jpg")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(toy: HandGraph, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(RenderError, match="no permission to write in"):
            render(toy.report(), tmp_path / "graph.txt")
    finally:
        tmp_path.chmod(0o700)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", fsync)


@pytest.mark.usefixtures("full_disk")
def test_a_write_that_fails_leaves_what_was_there(toy: HandGraph, tmp_path: Path) -> None:
    file = tmp_path / "graph.txt"
    file.write_text("before")
    with pytest.raises(RenderError, match=r"cannot write .*graph\.txt: No space left on device"):
        render(toy.report(), file)
    assert file.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["graph.txt"]


def test_a_link_is_followed(toy: HandGraph, tmp_path: Path) -> None:
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    render(toy.report(), tmp_path / "link.txt")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_bytes() == render_bytes(toy.report(), "txt")


def test_a_file_has_the_permissions_of_any_new_file(toy: HandGraph, tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    render(toy.report(), tmp_path / "graph.txt")
    assert (tmp_path / "graph.txt").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_rendering_twice_gives_the_same_bytes(toy: HandGraph) -> None:
    make: Callable[[str], bytes] = lambda format: render_bytes(toy.report(), format)  # noqa: E731
    for format in ("dot", "json", "svg", "txt"):
        assert make(format) == make(format)
