"""``--verify`` where there is nothing to measure, and how measured figures are told from predicted ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch._dynamo import eval_frame

from cli.verify import comparison, misjudged
from optrace.cost.profiles import pricing
from optrace.measuring.verify import Measured, VerifyError, verify
from optrace.report import Report
from optrace.report import report as price
from optrace.tracing import open_session
from optrace.tracing.session import session_is_open
from tests.cli.conftest import Command, Write
from tests.measuring import fake_cuda

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


def test_nothing_is_measured_while_a_session_switches_compiling_off() -> None:
    with open_session("fake"), pytest.raises(VerifyError, match="end the session first"):
        verify(lambda: None)


def test_a_record_of_cures_without_verify_is_an_error(optrace: Command, write: Write) -> None:
    write(MODEL)
    ran = optrace("model.py", "--save-cures", "cures.jsonl")
    assert ran.code == 2
    assert ran.err == "optrace: --save-cures cures.jsonl keeps what --verify measures: add --verify\n"


STEP = """
    import torch
    x = torch.ones(8, 8)

    @torch.compile
    def double(x):
        return x * 2

    def step():
        return double(x).relu()
"""


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """A GPU that captures nothing and whose profiler shows two kernels of 7 us. Gives the modes that a step is
    compiled with, and what compiled functions do at that time; nothing is compiled in a session."""
    asked: list[tuple[str, str]] = []

    def compile(step: Callable[[], object], mode: str = "default") -> Callable[[], object]:
        if step.__name__ != "double":
            assert not session_is_open()
            asked.append((mode, eval_frame._stance.stance))
        return step

    fake_cuda.install(monkeypatch)
    kernels = [{"cat": "kernel", "dur": 7.0}, {"cat": "kernel", "dur": 7.0}, {"cat": "cpu_op", "dur": 9.0}]
    monkeypatch.setattr("optrace.measuring.verify.trace_events", lambda _profiler: kernels)
    monkeypatch.setattr(torch, "compile", compile)
    return asked


@without_gpu
# torch's own imports say so when its compiler is first used.
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_the_command_measures_each_way_and_keeps_it(
    optrace: Command, write: Write, compiled: list[tuple[str, str]]
) -> None:
    write(STEP)
    ran = optrace("model.py", "--verify", "--save-cures", "cures.jsonl")
    assert ran.code == 0
    assert compiled == [("default", "default"), ("reduce-overhead", "default")]
    assert "+ CUDA graph could not be measured: " in ran.err
    measured = [line.split() for line in ran.out.splitlines() if line.strip().startswith("measured")]
    assert measured[0][:6] == ["measured", "2", "1.56", "KiB", "14", "us"]
    assert measured[1] == ["measured", "failed"]
    row = json.loads(Path("cures.jsonl").read_text())
    assert row["name"] == "model.py:step"
    assert (row["eager_k"], row["eager_gpu_us"]) == (2, 14.0)
    assert row["compiled_us"] > 0
    assert row["both_peak"] == 1600
    assert "graph_us" not in row
    assert row["graph_err"]
    assert optrace("model.py", "--verify", "--save-cures", "cures.jsonl", "-q").code == 0
    assert len(Path("cures.jsonl").read_text().splitlines()) == 1


@without_gpu
def test_cures_go_into_no_other_file(optrace: Command, write: Write, compiled: list[tuple[str, str]]) -> None:
    write(STEP)
    write("{}", "cures.jsonl")
    ran = optrace("model.py", "--verify", "--save-cures", "cures.jsonl")
    assert ran.code == 2
    assert "cures.jsonl, line 1: no measured cure" in ran.err
    assert compiled == []


@pytest.fixture(scope="module")
def report() -> Report:
    with open_session("fake") as session:
        x = torch.empty(64, 64, device="cuda")
        with session.recording():
            (x * 2).relu()
    return price(session.graph, pricing("h200", dispatch_us=38.5))


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


def as_measured(eager: float, fused: float) -> tuple[Measured, ...]:
    """A graph could not be captured; both cures as they are predicted, 77.6 us."""
    return (
        Measured("eager", eager, 4.0, 2, 1 << 20),
        Measured("+ CUDA graph", failed="RuntimeError: capture"),
        Measured("+ fusion", fused, 3.0, 1, 1 << 20),
        Measured("+ both", 77.6, 3.0, 1, 1 << 20),
    )


def test_a_cure_that_was_misjudged_is_told_with_what_was_wrong(report: Report) -> None:
    """Predicted: eager 102 us, fused 60.9. A host that was quicker than predicted makes a right 60 us no gain."""
    assert [round(row.wall_us) for row in report.cures.rows] == [102, 45, 61, 78]
    assert list(misjudged(report, as_measured(102, 61))) == []
    assert list(misjudged(report, as_measured(62, 61))) == [
        "+ fusion was predicted to take 5% off the eager step and does not: the eager step takes 62 us, ~102 us were predicted",
        "+ both was predicted to take 5% off the eager step and does not: the eager step takes 62 us, ~102 us were predicted",
    ]
    assert list(misjudged(report, as_measured(102, 110))) == [
        "+ fusion was predicted to take 5% off the eager step and does not: + fusion takes 110 us, ~60.9 us were predicted"
    ]
    failed = (Measured("eager", failed="no"), *as_measured(102, 110)[1:])
    assert list(misjudged(report, failed)) == []
