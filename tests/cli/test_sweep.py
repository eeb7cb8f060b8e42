"""``optrace sweep`` on one small model: cases, traces that GPUs share, what goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.conftest import Command, Write

MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 16)
    def forward(self, x):
        return self.fc(x).relu()

def get_inputs(batch=4):
    return [torch.ones(batch, 8)]
"""


def test_every_gpu_batch_and_dtype_is_a_case(optrace: Command, write: Write) -> None:
    write(MODEL)
    ran = optrace(
        "sweep", "model.py", "--gpu", "h100,h200", "--batch", "2,64", "--json", "--out", "sweep.json"
    )
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert (document["format"], document["version"], document["program"]) == ("optrace.sweep", 1, "model.py")
    cases = document["cases"]
    assert [(case["batch"], case["gpu"]) for case in cases] == [
        (2, "h100"),
        (2, "h200"),
        (64, "h100"),
        (64, "h200"),
    ]
    # One product with its bias, and a ReLU; 2 FLOPs a multiply-add, and one an element of the ReLU and of the bias.
    assert [case["launches"] for case in cases[:2]] == [2, 2]
    assert cases[2]["flops"] == 32 * cases[0]["flops"]
    assert cases[2]["sample_us"] == pytest.approx(cases[2]["wall_us"] / 64)
    assert all(case["fits"] and case["complete"] and case["bottleneck"] == "launch" for case in cases)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--gpu", "h100,abacus"], "no GPU profile fits 'abacus'"),
        (["--gpu", "h100,,b200"], "--gpu h100,,b200: names with commas between, and one is empty"),
        (["--batch", "two"], "--batch two: a whole number"),
        (["--out", "sweep.gif"], "cannot write sweep.gif: no plot is made for '.gif'"),
        (["--dtype", "bf17"], "unknown dtype 'bf17'"),
    ],
)
def test_bad_input_is_told_in_one_line(optrace: Command, write: Write, words: list[str], told: str) -> None:
    write(MODEL)
    ran = optrace("sweep", "model.py", *words)
    assert ran.code == 2
    assert told in ran.err
    assert ran.out == ""


def test_a_recorded_graph_is_no_program(optrace: Command) -> None:
    ran = optrace("sweep", "graph.json")
    assert (ran.code, "a sweep runs the program" in ran.err) == (2, True)


def test_a_case_that_raises_is_left_out(optrace: Command, write: Write) -> None:
    write(MODEL.replace("return [torch", "assert batch < 10\n    return [torch"))
    ran = optrace("sweep", "model.py", "--batch", "2,64", "--json")
    assert ran.code == 1
    assert [case["batch"] for case in json.loads(ran.out)["cases"]] == [2]
    assert "batch 64, h200: failed, and is left out" in ran.err


def test_a_plot_is_written(optrace: Command, write: Write) -> None:
    pytest.importorskip("matplotlib")
    folder = write(MODEL).parent
    ran = optrace("sweep", "model.py", "--gpu", "h100,h200", "--batch", "2,8", "-q", "--out", "sweep.svg")
    assert (ran.code, ran.out) == (0, "")
    assert b"<svg" in (folder / "sweep.svg").read_bytes()


def test_what_a_program_prints_is_not_among_the_results(write: Write) -> None:
    write(MODEL.replace("import torch", "import os, torch; print('one'); os.system('echo two')"))
    command = [sys.executable, "-m", "optrace.cli", "sweep", "model.py", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(json.loads(ran.stdout)["cases"]) == 1
    assert "one\n" in ran.stderr
    assert "two\n" in ran.stderr


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        # Of whichever case ends first.
        ("(batch=4)", "(size=4)", "get_inputs() takes no batch=; give it that parameter"),
        ("return [", "import os; os._exit(3); return [", "its process ended with exit status 3"),
        ("return [", "import os; os.kill(os.getpid(), 9); return [", "its process was killed, for memory"),
    ],
    ids=["bad input", "ends its process", "is killed"],
)
def test_an_error_in_one_case_ends_the_sweep_and_leaves_nothing(
    write: Write, old: str, new: str, told: str
) -> None:
    """In a process of its own: what multiprocessing keeps is told where a process ends."""
    write(MODEL.replace(old, new).replace("torch.ones(batch, ", "torch.ones(4, "))
    command = [sys.executable, "-m", "optrace.cli", "sweep", "model.py", "--batch", "2,3,4", "--jobs", "2"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 2, ran.stderr
    (line,) = ran.stderr.splitlines()
    assert told in line
