"""``--verify`` where there is nothing to measure, and how measured figures are told from predicted ones."""

from __future__ import annotations

import pytest
import torch
from rich.console import Console

from cli.verify import comparison
from optrace.cost.profiles import pricing
from optrace.measuring.verify import Measured, VerifyError, verify
from optrace.report import Report
from optrace.report import report as price
from optrace.tracing import open_session
from tests.cli.conftest import Command, Write

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")

MODEL = """
    import torch
    model = torch.nn.Linear(8, 8)
    inputs = torch.ones(8, 8)
"""


@without_gpu
def test_verify_without_a_gpu_is_one_clear_error(optrace: Command, write: Write) -> None:
    write(MODEL)
    ran = optrace("model.py", "--verify", "-o", "graph.json")
    assert ran.code == 2
    assert (
        ran.err
        == "optrace: --verify measures the cures on a CUDA GPU, and this machine has none: leave it out\n"
    )
    assert ran.out == ""


def test_verify_of_a_recorded_graph_is_an_error(optrace: Command, write: Write) -> None:
    write(MODEL)
    assert optrace("model.py", "--mode", "fake", "-o", "graph.json").code == 0
    ran = optrace("graph.json", "--verify")
    assert ran.code == 2
    assert "graph.json is a recorded graph" in ran.err


@without_gpu
def test_the_library_refuses_too() -> None:
    with pytest.raises(VerifyError, match="this machine has none"):
        verify(lambda: None)


@pytest.fixture(scope="module")
def report() -> Report:
    with open_session("fake") as session:
        x = torch.empty(64, 64, device="cuda")
        with session.recording():
            (x * 2).relu()
    return price(session.graph, pricing("h200"))


def test_predicted_and_measured_never_look_alike(report: Report) -> None:
    measured = (
        Measured("eager", 40.0, 4.0, 2, 1 << 20),
        Measured("+ CUDA graph", failed="RuntimeError: capture"),
        Measured("+ fusion", 20.0, 2.0, 1, 1 << 20, prepare_s=3.0),
        Measured("+ both", 10.0, 2.0, 1, 1 << 20, prepare_s=4.0),
    )
    console = Console(width=160, file=None, record=True, quiet=False)
    with console.capture() as capture:
        console.print(comparison(report, measured))
    lines = capture.get().splitlines()
    predicted = [line for line in lines if "predicted" in line]
    told = [line for line in lines if line.strip().startswith("measured")]
    assert len(predicted) == len(told) == 4
    assert all("~" in line for line in predicted)
    assert not any("~" in line for line in told)
    assert "failed" in told[1]
    assert "2.00x" in told[2]
    assert "4.00x" in told[3]
