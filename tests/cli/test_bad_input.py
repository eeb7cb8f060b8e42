"""Each kind of bad input: one clear line, exit code 2, nothing written, and no frame of ours over the user's."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from optrace.cli import main

GOOD = """
import torch
print("running")
def main():
    torch.ones(4) + 1
"""

MODEL = "import torch\nclass Model(torch.nn.Module): pass\n"

ROWS = [
    # the command line itself
    ("", [], "Missing argument"),
    (GOOD, ["model.py", "--nonsense"], "No such option: --nonsense"),
    (GOOD, ["model.py", "graph.svg"], "unexpected extra argument"),
    (GOOD, ["model.py", "--mode", "gpu"], "'gpu' is not one of 'auto', 'fake', 'cpu', 'cuda'"),
    (GOOD, ["model.py", "--device", "tpu"], "'tpu' is not one of 'cuda', 'cpu'"),
    (GOOD, ["model.py", "--assume", "one"], "'one' is not one of 'error', 'zero', 'worst'"),
    (GOOD, ["model.py", "--steps", "many"], "Invalid value for '--steps'"),
    (GOOD, ["model.py", "--mode", "slow"], "Invalid value for '--mode': 'slow' is not one of 'auto', 'fake'"),
    (GOOD, ["model.py", "--depth", "-1"], "depth counts module levels and cannot be -1"),
    (GOOD, ["gpus", "h100"], "unexpected extra argument"),
    # prices
    (GOOD, ["model.py", "--gpu", "h1000"], "no GPU profile fits 'h1000' (one of a100-40gb"),
    (GOOD, ["model.py", "--host", "laptop"], "no host profile fits 'laptop' (one of default"),
    (GOOD, ["model.py", "--dispatch-us", "-1"], "dispatch_us is a time in microseconds and cannot be -1"),
    (GOOD, ["model.py", "--bandwidth-tb", "0"], "bandwidth_tb is a rate in TB/s and cannot be 0"),
    # outputs, found out before the program runs
    (
        GOOD,
        ["model.py", "-o", "graph.gif"],
        "cannot write graph.gif: no renderer for '.gif' (one of .csv, .dot",
    ),
    (GOOD, ["model.py", "-o", "graph"], "cannot write graph: its name has no suffix"),
    (
        GOOD,
        ["model.py", "-o", "graph.svg", "-o", "none/graph.svg"],
        "cannot write none/graph.svg: there is no folder",
    ),
    (GOOD, ["model.py", "-o", "folder.svg"], "cannot write folder.svg: it is a folder"),
    (GOOD, ["model.py", "-o", f"{'n' * 300}.svg"], "n.svg: File name too long"),
    # the program
    (GOOD, ["nothing.py"], "no such file: nothing.py"),
    (GOOD, ["nothing"], "no such file: nothing"),
    (GOOD, [f"{'n' * 300}.py"], "no such file: nnn"),
    ("\0", ["model.py"], "model.py is not Python: source code string cannot contain null bytes"),
    (GOOD, ["model.py:other"], "model.py has no 'other' (it has main)"),
    (GOOD + "def run(): pass", ["model.py"], "has main() and run(): name the one to run (model.py:main)"),
    (
        "import torch.nn.functional as F\nfrom torch import *\ndef ours(): pass",
        ["model.py:mine"],
        "(it has ours, ",
    ),
    (MODEL, ["model.py"], "model.py defines Model and no get_inputs()"),
    (GOOD, ["model.py", "--train"], "--train needs a model and its inputs"),
    (GOOD, ["model.py", "--dtype", "int3"], "unknown dtype 'int3' (one of bfloat16"),
    (GOOD, ["model.py", "--steps", "0"], "--steps 0: at least 1"),
    (
        "x = 1",
        ["model.py"],
        "nothing was recorded: model.py as a script dispatched no op (looked for file.py:name; Model",
    ),
    ("def main(): pass", ["model.py"], "nothing was recorded: main() of model.py dispatched no op"),
    (
        "import optrace, torch\nfor _ in range(2):\n  with optrace.step(): torch.ones(2) + 1",
        ["model.py", "--warmup", "5"],
        "nothing was recorded: model.py took 2 steps, with --warmup 5",
    ),
    # graph.json
    (GOOD, ["nothing.json"], "cannot read nothing.json: No such file"),
    (GOOD, ["corrupt.json"], "cannot read corrupt.json: not a JSON object"),
    (GOOD, ["foreign.json"], 'cannot read foreign.json: no optrace graph (its "format"'),
    (
        GOOD,
        ["foreign.json", "--train"],
        "--train is about running a program, and foreign.json is a recorded graph",
    ),
    (GOOD, ["foreign.json", "--", "--small"], "arguments after -- are a program's"),
]


@pytest.mark.parametrize(("source", "words", "message"), ROWS, ids=[" ".join(row[1])[:80] for row in ROWS])
def test_one_line_and_exit_code_2(
    optrace, write, folder: Path, source: str, words: list[str], message: str
) -> None:
    write(source)
    write('{"format": ', "corrupt.json")
    write('{"format": "something else"}', "foreign.json")
    (folder / "folder.svg").mkdir()
    before = sorted(folder.iterdir())
    ran = optrace(
        *words,
        *(
            ["--mode", "cpu"]
            if "--mode" not in words and ".json" not in str(words) and words and words[0] != "gpus"
            else []
        ),
    )
    assert (ran.code, message in ran.err) == (2, True), ran.err
    assert ran.err.startswith("optrace: ")
    assert ran.err.count("\n") == 1
    written = [path for path in folder.iterdir() if path not in before and path.suffix != ".py"]
    assert not written
    if "-o" in words or "--gpu" in words:
        assert "running" not in ran.out


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_cuda_without_a_gpu(optrace, write) -> None:
    write(GOOD)
    ran = optrace("model.py", "--mode", "cuda", "-o", "graph.svg")
    assert ran.code == 2
    assert (
        ran.err
        == "optrace: mode 'cuda' needs a CUDA GPU and torch sees none: use --mode fake, which needs no GPU\n"
    )
    assert not Path("graph.svg").exists()


@pytest.mark.parametrize(
    ("source", "last_line"),
    [
        ("def broken(:", "SyntaxError: invalid syntax"),
        ("import missing_library", "ModuleNotFoundError: No module named 'missing_library'"),
        (
            "def main(): pass\nimport missing_library",
            "ModuleNotFoundError: No module named 'missing_library'",
        ),
        ("import helper\ndef main(): pass", "RuntimeError: helper"),
        ("def main(): 1 / 0", "ZeroDivisionError: division by zero"),
        (
            "try:\n  1 / 0\nexcept ZeroDivisionError as e:\n  raise ValueError('two') from e",
            "ValueError: two",
        ),
    ],
)
def test_the_programs_own_error_keeps_its_traceback(
    optrace, write, folder: Path, source: str, last_line: str
) -> None:
    write(source)
    write("raise RuntimeError('helper')", "helper.py")
    ran = optrace("model.py", "--mode", "cpu", "-o", "graph.svg")
    assert ran.code == 2
    assert ran.err.splitlines()[-1] == last_line
    assert "model.py" in ran.err
    for ours in ("optrace/", "cli/", "typer", "importlib", "runpy", "contextlib"):
        assert ours not in ran.err.replace(str(folder), "")
    assert not Path("graph.svg").exists()


@pytest.mark.parametrize(
    ("exit", "said"),
    [("3", "model.py ended with exit status 3"), ("'no data'", "no data"), ("0", "nothing was recorded")],
)
def test_a_program_that_exits_before_any_op(optrace, write, exit: str, said: str) -> None:
    write(f"raise SystemExit({exit})")
    ran = optrace("model.py", "--mode", "cpu")
    assert ran.code == 2
    assert ran.err.startswith(f"optrace: {said}")


def test_a_fault_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch, optrace, write) -> None:
    write(GOOD)
    monkeypatch.setattr("optrace.program.entries._exits_quietly", None)
    ran = optrace("model.py", "--mode", "cpu")
    assert ran.code == 2
    assert ran.err.startswith("optrace: this is a fault of optrace")
    assert "entries.py" in ran.err


def test_main_returns_and_does_not_exit() -> None:
    assert main(["--version"]) == 0


def test_shapes_that_do_not_fit_are_told_once(optrace, write, caplog: pytest.LogCaptureFixture) -> None:
    write("import torch\ndef main(): torch.ones(3, 4, device='cuda') @ torch.ones(3, 4, device='cuda')")
    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addHandler(caplog.handler)
    try:
        ran = optrace("model.py", "--mode", "fake")
    finally:
        log.removeHandler(caplog.handler)
    assert ran.err.count("Traceback") == 1
    assert not caplog.records
