"""``optrace diff`` and ``optrace scoreboard`` on graphs of one small program in three versions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from optrace.cli import main

PROGRAM = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 8)
    def forward(self, x):
        {forward}

def main():
    return Net().cuda()(torch.ones(4, 8, device="cuda"))
"""

PASSES = {
    "eager": "return (self.fc(x) * 2 * 3).sin()",
    "fewer": "return (self.fc(x) * 6).sin()",
    "least": "return self.fc(x).sin()",
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a graph of each version and one of another program."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, source in {
            **{name: PROGRAM.format(forward=forward) for name, forward in PASSES.items()},
            "other": 'import torch\ndef main(): return torch.ones(3, 3, device="cuda").cos().exp()',
        }.items():
            file = "other.py" if name == "other" else "model.py"
            (folder / file).write_text(source)
            assert main([file, "--mode", "fake", "-q", "-o", f"{name}.json"]) == 0
    return folder


@pytest.fixture
def graphs(recorded: Path, folder: Path) -> list[str]:
    for file in recorded.glob("*.json"):
        shutil.copy(file, folder)
    return [f"{name}.json" for name in PASSES]


def test_diff_prints_the_scoreboards_change_and_what_went(optrace, graphs) -> None:
    ran = optrace("diff", "eager.json", "fewer.json", "--title", "as it was", "--title", "one product")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0].split() == ["as", "it", "was", "one", "product", "change"]
    row = next(line.split() for line in lines if line.startswith("launches"))
    assert int(row[1]) - int(row[2]) == 1
    assert row[3] == "-1"
    went = next(line.split() for line in lines if line.startswith("went"))
    assert went[1:3] == ["aten.mul.Tensor", "1"]
    assert "Net," in went


def test_diff_as_json_and_files(optrace, graphs) -> None:
    ran = optrace("diff", "eager.json", "least.json", "--json", "-o", "diff.json", "-o", "diff.svg")
    assert ran.code == 0
    assert json.loads(ran.out) == json.loads(Path("diff.json").read_text())
    (change,) = json.loads(ran.out)["changes"]
    assert (change["kind"], change["calls"], change["launches"]) == ("went", 2, -2)
    assert "aten.mul.Tensor" in Path("diff.svg").read_text()


def test_a_series_falls_line_by_line(optrace, graphs) -> None:
    ran = optrace("scoreboard", *graphs)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(PASSES)
    first, second, third = (int(line.split()[1]) for line in lines[1:])
    assert first - 2 == second - 1 == third
    rows = json.loads(optrace("scoreboard", *graphs, "--json").out)["runs"]
    assert [row["launches"] for row in rows] == [first, second, third]
    assert [row["title"] for row in rows] == list(PASSES)


ROWS = [
    (["diff", "eager.json"], "Missing argument 'B.json'"),
    (["diff", "eager.json", "none.json"], "cannot read none.json: No such file"),
    (["diff", "eager.json", "broken.json"], "cannot read broken.json: not a JSON object"),
    (["diff", "eager.json", "other.json"], "these are runs of two programs, model.py:main and other.py:main"),
    (["diff", "eager.json", "fewer.json", "-o", "x.html"], "cannot write x.html: a comparison is no .html"),
    (["diff", "eager.json", "fewer.json", "-o", "no/x.svg"], "cannot write no/x.svg: there is no folder"),
    (["diff", "eager.json", "fewer.json", "--title", "one"], "--title was given 1 times for 2 files"),
    (["diff", "eager.json", "fewer.json", "--gpu", "h1000"], "no GPU profile fits 'h1000'"),
    (["scoreboard"], "Missing argument"),
    (["scoreboard", "eager.json", "broken.json"], "cannot read broken.json: not a JSON object"),
]


@pytest.mark.parametrize(("words", "message"), ROWS, ids=[" ".join(row[0]) for row in ROWS])
def test_bad_input_is_one_line(optrace, graphs, folder: Path, words: list[str], message: str) -> None:
    (folder / "broken.json").write_text("{nonsense")
    before = sorted(path.name for path in folder.iterdir())
    ran = optrace(*words)
    assert ran.code == 2
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1
    assert sorted(path.name for path in folder.iterdir()) == before
