"""A measurement from end to end, with a GPU that is not there."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest
import torch
from optrace.cli.measure import _Asked

from optrace.cost.profiles import pricing
from optrace.measuring.beside import by_op, figures, remark_on_counters, time_weighted_error
from optrace.measuring.counters import Counted, CountedKernel
from optrace.measuring.limits import Limits, StageTimeoutError
from optrace.measuring.record import Launch, read_machine, read_runs
from optrace.measuring.recorder import (
    MeasureError,
    Measurement,
    _remarks_on_events,
    _remarks_on_warm_up,
    _warm_up,
    measure,
)
from optrace.measuring.steps import Repeated
from optrace.report import report
from optrace.tracing import open_session
from tests.measuring import fake_cuda

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="stands in for a GPU that is there")
pytestmark = without_gpu


def measured_step(**how: object) -> Measurement:
    x = torch.ones(8, 8)
    with open_session("cuda") as session:
        return measure(session, "step", lambda: (x @ x).relu().view(64), repeats=4, seconds=0.05, **how)  # type: ignore[arg-type]


def test_each_call_has_its_kernels_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda.install(monkeypatch, of_call=lambda number: number < 2)  # the view launches nothing
    stages: list[str] = []
    found = measured_step(progress=stages.append)
    assert [node.op for node in found.graph] == ["aten.mm.default", "aten.relu.default", "aten.view.default"]
    assert found.call_us == (fake_cuda.KERNEL_US, fake_cuda.KERNEL_US, 0)
    assert found.device_us == 2 * fake_cuda.KERNEL_US
    assert len(found.event_us) == len(found.event_cold_us) == 3
    assert found.memory_peak - found.memory_base == 1600 - 1000
    assert 0 < found.issue.p10 <= found.issue.median <= found.issue.p90
    assert stages[0] == "warm-up"
    row = found.row
    assert [len(call["kernels"]) for call in row["ops"]] == [1, 1, 0]
    assert {"freed", "phase", "module", "stream", "pre_us", "in_us", "event_us", "event_cold_us"} <= row[
        "ops"
    ][0].keys()


def test_the_child_of_nsight_compute_runs_the_same_step() -> None:
    options = {
        "train": True,
        "optimizer": "sgd",
        "dtype": None,
        "no_grad": False,
        "batch": 2,
        "args": ("--size", "4"),
    }
    words = _Asked("model.py:net", options, warmup=3, repeats=30, seconds=5.0, limit=60.0).child()
    assert words[1:] == [
        *("-m", "optrace.cli", "measure", "model.py:net", "--counted-step"),
        *("--train", "--optimizer", "sgd", "--batch", "2", "--warmup", "3"),
        *("--limit", "60", "--", "--size", "4"),
    ]


def test_events_that_disagree_with_the_profiler_are_said() -> None:
    call = (Launch("kernel", "a", 100.0),)
    assert _remarks_on_events([120.0, 5.0], [call, ()]) == []
    assert _remarks_on_events([100 * 1.25 + 2.0], [call]) == []  # a quarter, and 2 us for the launch
    assert "disagree: 100 and 128 us" in _remarks_on_events([127.6], [call])[0]
    assert _remarks_on_events([], [call]) == []


def test_a_first_step_that_loads_libraries_takes_none_of_the_warm_ups_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes longer than the whole warm-up may."""
    fake_cuda.install(monkeypatch, of_call=lambda _number: True)
    taken = iter([1.1])

    def step() -> None:
        time.sleep(next(taken, 0.0))

    assert _warm_up(Repeated(step), 1.0)[1] > 8


def test_a_warm_up_says_what_it_knows() -> None:
    assert _remarks_on_warm_up(True, 8) == []
    assert "too few to know" in _remarks_on_warm_up(False, 4)[0]
    assert "had not settled after 40 steps" in _remarks_on_warm_up(False, 40)[0]


def test_a_stage_too_long_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda.install(monkeypatch)
    with open_session("cuda") as session, pytest.raises(StageTimeoutError, match="warm-up took longer"):
        measure(
            session,
            "slow",
            lambda: time.sleep(1),
            limits=Limits(0.05, on_hang=lambda stage: None),
        )


def test_nothing_launched_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda.install(monkeypatch, of_call=lambda number: False)
    with pytest.raises(MeasureError, match="step launched nothing on the GPU"):
        measured_step()


def test_predicted_beside_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda.install(monkeypatch, of_call=lambda number: number < 2)
    found = measured_step()
    priced = report(found.graph, pricing("h200"))
    rows = by_op(priced, found)
    assert {row.op: row.measured_us for row in rows} == {"aten.mm.default": 7.0, "aten.relu.default": 7.0}
    apart = sum(row.apart_us for row in rows)
    assert time_weighted_error(rows) == pytest.approx(apart / 14)
    kernels = (CountedKernel("mm", 100, 20, 1.0), CountedKernel("relu", 3, 4, 1.0))
    by_name = {figure.name: figure for figure in figures(priced, found, Counted(kernels))}
    assert by_name["launches"].measured == 2
    assert by_name["HBM bytes"].measured == 100 + 20 + 3 + 4
    assert by_name["wall clock"].measured == found.wall.median
    assert remark_on_counters(found, Counted(kernels)) == ""
    other = Counted(kernels[:1])
    assert "counted 1 kernels and the profiler 2" in remark_on_counters(found, other)
    assert not [figure for figure in figures(priced, found, other) if figure.unit == "bytes"]
    first = Counted(kernels[:1], complete=False)
    assert "over after 1 of 2 kernels" in remark_on_counters(found, first)
    (part,) = (figure for figure in figures(priced, found, first) if figure.unit == "bytes")
    assert (part.name, part.predicted, part.measured) == (
        "HBM bytes, first 1 kernels",
        priced.costs[0].hbm_bytes,
        100 + 20,
    )


MODEL = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
inputs = torch.ones(8, 8)
"""


def test_the_command_writes_record_and_picture(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from optrace.cli import main

    fake_cuda.install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    words = ["--seconds", "0.05", "--repeats", "4", "--save", "record.jsonl.gz", "-o", "graph.dot"]
    assert main(["measure", "model.py", *words]) == 0
    ran = capsys.readouterr()
    totals = next(line for line in ran.out.splitlines() if line.startswith("device time  "))
    assert "~" in totals
    assert " 28 us" in totals  # t, addmm, relu, detach: 4 x 7
    assert "wrote record.jsonl.gz" in ran.out
    assert "nvidia-smi gave no answer" in ran.err
    assert read_machine(Path("record.jsonl.gz")).device == "NVIDIA H200"
    (run,) = read_runs(Path("record.jsonl.gz"))
    assert run.device_us == 28.0
    assert run.freed_known
    machine, row = (
        json.loads(line) for line in gzip.decompress(Path("record.jsonl.gz").read_bytes()).splitlines()
    )
    assert machine["sm_count"] == 132
    assert row["remarks"]
    assert "measured 28 us" in Path("graph.dot").read_text()


def test_the_command_measures_marked_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from optrace.cli import main

    fake_cuda.install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "import torch, optrace\ndef main():\n    x = torch.ones(3)\n"
        "    for _ in range(3):\n        with optrace.step():\n            x = x * 2\n"
    )
    assert main(["measure", "train.py", "--seconds", "0.05", "--repeats", "4"]) == 0
    assert "aten.mul.Tensor" in capsys.readouterr().out


def test_python_inside_a_marked_step_is_timed_and_that_between_steps_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from optrace.cli import main

    fake_cuda.install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "import time, torch, optrace\ndef main():\n    x = torch.ones(3)\n    for _ in range(3):\n"
        "        time.sleep(0.1)\n        with optrace.step():\n            x = x * 2\n            time.sleep(0.02)\n"
        "            x = x + 1\n            time.sleep(0.03)\n"
    )
    words = ["--seconds", "0.05", "--repeats", "4", "--save", "record.jsonl.gz"]
    assert main(["measure", "train.py", *words]) == 0
    (run,) = read_runs(Path("record.jsonl.gz"))
    before_us = [node.python_us for node in run.graph]
    # The recorded times are scaled by the host's speed while the wall clock was timed: no more than 2 apart here.
    assert before_us[0] < 10_000 <= before_us[1] < 50_000
    assert run.graph.info.tail_us >= 15_000


@pytest.mark.parametrize(
    ("source", "code", "message"),
    [
        ("print(1)\n", 2, "script.py ran once and marked no step"),
        ("raise ValueError('mine')\n", 1, "ValueError: mine"),
        ("raise SystemExit('not today')\n", 1, "not today"),
    ],
)
def test_programs_that_cannot_be_measured(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    source: str,
    code: int,
    message: str,
) -> None:
    from optrace.cli import main

    fake_cuda.install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(source)
    assert main(["measure", "script.py", "--save", "record.jsonl"]) == code
    assert message in capsys.readouterr().err
    assert not Path("record.jsonl").exists()
