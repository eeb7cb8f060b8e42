"""Each example in docs/examples runs as it is, in an empty folder."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent.parent / "docs" / "examples").glob("*.py"))

#: A part of what each prints.
PRINTS = {
    "trace_a_model": "launches, ",
    "compare_two_versions": "fused",
    "assert_a_budget": "launches: 3, allowed 1 (baseline 1): +2 over",
    "price_for_gpus": "NVIDIA L4",
    "read_the_graph": "addmm",
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(example), run_name="__main__")
    assert PRINTS[example.stem] in capsys.readouterr().out


def test_there_are_five() -> None:
    assert {example.stem for example in EXAMPLES} == set(PRINTS)
