from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest
from optrace.cli import main


@dataclass(frozen=True)
class Ran:
    """What one command line gave."""

    code: int
    out: str
    err: str


Command = Callable[..., Ran]
Write = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def write(folder: Path) -> Write:
    def write(source: str, name: str = "model.py") -> Path:
        (folder / name).write_text(dedent(source))
        return folder / name

    return write


@pytest.fixture
def optrace(folder: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command, in this process: ``optrace("model.py", "--top", "3")``."""

    def optrace(*words: str) -> Ran:
        capsys.readouterr()
        code = main(words)
        return Ran(code, *capsys.readouterr())

    return optrace
