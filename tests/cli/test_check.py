"""``optrace check``: a program held against a budget."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

PROGRAM = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return (x * 2{extra}).sin()

def main():
    Net()(torch.ones(4, 8, device="cuda")){read}
"""


@pytest.fixture
def program(write):
    """Three launches: ones, mul and sin; with ``extra`` one more, with ``read`` a value read."""

    def program(extra: str = "", read: str = "") -> None:
        write(PROGRAM.format(extra=extra, read=read))

    return program


def check(optrace, *words: str):
    return optrace("check", "model.py", "--mode", "fake", "--assume", "zero", "--no-github", *words)


def test_within_budget(optrace, write, program) -> None:
    program()
    write("launches = 3\nsyncs = 0", "optrace.toml")
    ran = check(optrace)
    assert ran.code == 0
    assert "within budget" in ran.out
    assert ran.out.splitlines()[3].split() == ["ok", "launches", "3", "3"]


def test_over_budget_is_exit_code_1_and_says_what_adds_most(optrace, write, program) -> None:
    program(read=".sum().item()")
    write('launches = 3\nsyncs = 0\nfindings = ["sync"]', "optrace.toml")
    ran = check(optrace, "-q")
    assert ran.code == 1
    lines = ran.out.splitlines()
    assert lines[0] == "launches: 5, allowed 3: +2 over"
    assert any(line.startswith("syncs: 1, allowed 0: +1 over") for line in lines)
    assert any(line.startswith("findings.sync: 1, allowed 0: +1 over") for line in lines)
    assert any("aten._local_scalar_dense.default x1, model.py:9" in line for line in lines)


def test_the_baseline_is_stored_and_a_later_run_held_against_it(
    optrace, write, program, folder: Path
) -> None:
    program()
    write('launches = "baseline"\nhbm_bytes = "baseline + 1 %"', "optrace.toml")
    assert check(optrace, "--update").code == 0
    stored = json.loads((folder / "optrace-baseline.json").read_text())["programs"]["model.py"]
    assert stored["values"]["launches"] == 3
    assert check(optrace).code == 0
    program(extra=" + 1")
    ran = check(optrace, "-q")
    assert ran.code == 1
    assert ran.out.splitlines()[:2] == [
        "launches: 4, allowed 3 (baseline 3): +1 over",
        "  +1  aten.add.Tensor x1, Net, model.py:6",
    ]
    # Another program's baseline is kept.
    write("import torch\ndef main(): torch.ones(2, device='cuda')", "other.py")
    assert optrace("check", "other.py", "--mode", "fake", "--update").code == 0
    assert set(json.loads((folder / "optrace-baseline.json").read_text())["programs"]) == {
        "model.py",
        "other.py",
    }


def test_a_time_over_its_limit_warns(optrace, write, program) -> None:
    program()
    write("wall_us = 1", "optrace.toml")
    ran = check(optrace)
    assert ran.code == 0
    assert "within budget; 1 time over, which only warns" in ran.out


def test_junit_and_annotations(optrace, write, program, folder: Path) -> None:
    program(extra=" + 1")
    write("launches = 3\nwall_us = 1\nsyncs = 0", "optrace.toml")
    ran = optrace("check", "model.py", "--mode", "fake", "--junit", "out.xml", "--github", "-q")
    assert ran.code == 1
    suite = ElementTree.parse(folder / "out.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    cases = {case.get("name"): [child.tag for child in case] for case in suite}
    assert cases == {"launches": ["failure"], "wall_us": ["system-out"], "syncs": []}
    commands = [line for line in ran.out.splitlines() if line.startswith("::")]
    assert commands[0].startswith(
        "::error file=model.py,line=9,title=optrace%3A launches of model.py::launches: 4"
    )
    assert commands[1].startswith("::warning file=model.py,line=")


def test_annotations_are_on_where_github_runs_it(optrace, write, program, monkeypatch) -> None:
    program(extra=" + 1")
    write("launches = 3", "optrace.toml")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert "::error file=model.py" in optrace("check", "model.py", "--mode", "fake", "-q").out


def test_a_recorded_graph_is_checked_too(optrace, write, program) -> None:
    program()
    write("launches = 2", "optrace.toml")
    assert optrace("model.py", "--mode", "fake", "-q", "-o", "graph.json").code == 0
    assert optrace("check", "graph.json", "--no-github").code == 1


@pytest.mark.parametrize(
    ("pattern", "told"),
    [("Netz", "did you mean Net?"), ("**.attention", "there were Net"), ("Net.blocks.*", "there were Net")],
)
def test_a_limit_on_modules_that_are_not_there(optrace, write, program, pattern: str, told: str) -> None:
    program()
    write(f'[modules."{pattern}"]\nlaunches = "baseline"', "optrace.toml")
    ran = check(optrace, "--update", "-q")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"optrace: optrace.toml: modules: nothing that ran fits {pattern!r} ({told})\n"
    assert not Path("optrace-baseline.json").exists()


ROWS = [
    ("", [], "no budget: there is neither optrace.toml nor pyproject.toml here"),
    ("launchs = 3", [], "optrace.toml: unknown key launchs (one of baseline, tolerance, launches"),
    ('launches = "few"', [], "optrace.toml: launches = 'few': expected a number"),
    ("tolerance = 0.1", [], "optrace.toml sets no limit for model.py"),
    (
        'launches = "baseline"',
        [],
        "optrace-baseline.json is not there to hold the baseline of model.py for launches: store it with optrace "
        "check model.py --update",
    ),
    ("launches = 3", ["--budget", "none.toml"], "cannot read none.toml: No such file"),
    ("launches = 3", ["--junit", "none/out.xml"], "cannot write none/out.xml: there is no folder"),
    ('baseline = "broken.json"\nlaunches = "baseline"', [], "cannot read broken.json: "),
    (
        'baseline = "none/b.json"\nlaunches = "baseline"',
        ["--update"],
        "cannot write none/b.json: there is no",
    ),
]


@pytest.mark.parametrize(
    ("budget", "words", "message"), ROWS, ids=[" ".join((row[0], *row[1])) for row in ROWS]
)
def test_bad_input_is_one_line_and_nothing_runs(
    optrace, write, program, folder: Path, budget: str, words: list[str], message: str
) -> None:
    program()
    (folder / "broken.json").write_text("{nonsense")
    if budget:
        write(budget, "optrace.toml")
    before = sorted(path.name for path in folder.iterdir())
    ran = check(optrace, *words)
    assert ran.code == 2
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1
    assert ran.out == ""
    assert sorted(path.name for path in folder.iterdir()) == before
