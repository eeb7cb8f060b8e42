"""The parts of measuring that need no GPU: when a step has settled, limits, whose launch is whose, what the driver and
the counters say."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from optrace.measuring import counters
from optrace.measuring.counters import CountedKernel, CountersError, count, read_counters
from optrace.measuring.events import less_empty
from optrace.measuring.launches import by_call
from optrace.measuring.limits import Limits, StageTimeoutError
from optrace.measuring.machine import GpuState, read_state, remarks_before, remarks_under_load
from optrace.measuring.recorder import Spread, has_settled
from optrace.measuring.steps import Marked, MeasureError, Repeated, steps_of
from optrace.program import find_program
from optrace.tracing import open_session, step


@pytest.mark.parametrize(
    ("wall_us", "settled"),
    [
        ([100.0] * 7, False),  # fewer than 2 x 4
        ([100.0] * 8, True),
        ([900, 300, 150, 120, 101, 100, 102, 100], False),  # the quickest: 120, then 100
        ([900, 300, 150, 104, 101, 100, 102, 100], True),  # 104, then 100
        ([100, 100, 100, 100, 400, 100, 700, 300], True),  # a neighbour disturbs single steps
        ([100, 100, 100, 100, 110, 111, 112, 113], False),  # it grows
    ],
)
def test_a_step_has_settled_when_its_quickest_no_longer_change(wall_us: list[float], settled: bool) -> None:
    assert has_settled(wall_us) is settled


def test_spread_is_median_and_outer_tenths() -> None:
    spread = Spread.of([float(value) for value in range(11, 0, -1)])
    assert spread == Spread(median=6.0, p10=2.0, p90=10.0, n=11)
    assert spread.width == (10 - 2) / 6
    assert Spread.of([5.0]) == Spread(5.0, 5.0, 5.0, 1)


def test_what_two_events_show_with_nothing_between_is_left_out() -> None:
    assert less_empty([0.012, 0.001, 0.0005], [0.002, 0.001]) == [11.0, 0.0, 0.0]


def _mark(number: int, ts: float, dur: float, tid: int = 1) -> dict[str, object]:
    return {"cat": "user_annotation", "name": f"optrace call {number}", "ts": ts, "dur": dur, "tid": tid}


def _launch(
    correlation: int, at: float, tid: int, runs_at: float, us: float, name: str
) -> list[dict[str, object]]:
    return [
        {"cat": "cuda_runtime", "ts": at, "tid": tid, "args": {"correlation": correlation}},
        {
            "cat": "kernel",
            "name": name,
            "ts": runs_at,
            "dur": us,
            "tid": "stream 7",
            "args": {"correlation": correlation, "grid": [2, 1, 1]},
        },
    ]


def test_launches_belong_to_the_call_in_whose_time_and_thread_they_were_issued() -> None:
    events = [
        _mark(0, 10, 10),
        _mark(1, 30, 10),
        _mark(2, 12, 20, tid=2),  # the autograd engine's thread, at the same time
        *_launch(1, 15, 1, 100, 3.0, "of call 0"),
        *_launch(2, 16, 2, 90, 4.0, "of call 2"),
        *_launch(3, 35, 1, 130, 6.0, "second of call 1"),
        *_launch(4, 32, 1, 120, 5.0, "first of call 1"),
        *_launch(5, 25, 1, 110, 7.0, "between calls"),
        {
            "cat": "gpu_memset",
            "name": "Memset",
            "ts": 140,
            "dur": 1.0,
            "args": {"bytes": 4, "correlation": 99},
        },
    ]
    calls, stray = by_call(events, 3)
    assert [[(launch.name, launch.us) for launch in call] for call in calls] == [
        [("of call 0", 3.0)],
        [("first of call 1", 5.0), ("second of call 1", 6.0)],
        [("of call 2", 4.0)],
    ]
    assert [(launch.kind, launch.us, launch.bytes) for launch in stray] == [
        ("kernel", 7.0, None),
        ("memset", 1.0, 4),
    ]
    assert calls[0][0].grid == (2, 1, 1)


def test_a_stage_is_stopped_between_two_instructions() -> None:
    limits = Limits(0.05, on_hang=lambda stage: None)
    said = r"warm-up took longer than 0\.05 s \(--limit\)"
    with pytest.raises(StageTimeoutError, match=said), limits.stage("warm-up"):
        time.sleep(5)
    with limits.stage("the next one"):
        time.sleep(0.001)


def test_a_stage_that_cannot_be_stopped_is_given_up() -> None:
    hung: list[str] = []
    done = threading.Event()
    limits = Limits(0.01, on_hang=lambda stage: (hung.append(stage), done.set()), grace_s=0.01)

    def stuck() -> None:  # no alarm reaches another thread than the main one
        with limits.stage("profiling"):
            done.wait(10)

    thread = threading.Thread(target=stuck)
    thread.start()
    thread.join(10)
    assert hung == ["profiling"]


def test_steps_of_a_callable() -> None:
    ran: list[int] = []
    steps = Repeated(lambda: ran.append(1))
    assert steps.run(nullcontext, 3) == 3
    assert steps.run(nullcontext, 100, seconds=0.0) == 1
    told: list[str] = []
    assert steps.row(2, lambda: told.append("start"), lambda: told.append("end")) == 2
    assert told == ["start", "end"]
    assert len(ran) == 3 + 1 + 2


class Program:
    """Marks four steps each time it runs."""

    def __init__(self, marks: int = 4) -> None:
        self.marks = marks
        self.told: list[str] = []

    def __call__(self) -> None:
        for number in range(self.marks):
            with step():
                self.told.append(f"step {number}")

    def note(self, text: str) -> None:
        self.told.append(text)


def test_steps_of_a_program_that_marks_them() -> None:
    program = Program()
    with open_session("fake") as session:
        steps = Marked(session, program, "train.py", None)
        assert steps.skip == 1  # the first of each run
        program.told.clear()

        class Around:
            def __enter__(self) -> None:
                program.note("in")

            def __exit__(self, *_: object) -> None:
                program.note("out")

        assert steps.run(Around, 4) == 4  # three of the first run, one of the second
        whole = ["step 0", *["in", "step 1", "out", "in", "step 2", "out", "in", "step 3", "out"]]
        assert program.told == [*whole, "step 0", "in", "step 1", "out", "step 2", "step 3"]
        program.told.clear()
        assert steps.row(2, lambda: program.note("start"), lambda: program.note("end")) == 2
        assert program.told == ["step 0", "start", "step 1", "step 2", "end", "step 3"]


def test_a_marked_step_is_recorded_and_nothing_else() -> None:
    import torch

    def program() -> None:
        x = torch.ones(4, device="cuda")
        for _ in range(3):
            with step():
                x = x * 2
            x = x + 1

    with open_session("fake") as session:
        steps = Marked(session, program, "train.py", None)
        session.forget()
        steps.run(session.recording, 1)
        assert [node.op for node in session.graph] == ["aten.mul.Tensor"]


@pytest.mark.parametrize(
    ("marks", "skip", "message"),
    [
        (0, None, "train.py ran once and marked no step"),
        (2, 2, "--warmup 2: train.py marks 2 steps, so none is left to measure"),
    ],
)
def test_a_program_with_nothing_to_repeat(marks: int, skip: int | None, message: str) -> None:
    with open_session("fake") as session, pytest.raises(MeasureError, match=message):
        Marked(session, Program(marks), "train.py", skip)


def test_a_script_that_marks_its_steps_is_run_again(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(
        "import torch, optrace\nx = torch.ones(2, device='cuda')\nfor _ in range(3):\n    with optrace.step():\n        x = x * 2\n"
    )
    with open_session("fake") as session, find_program(str(file)) as program:
        steps = steps_of(program, session)
        assert steps.run(nullcontext, 5) == 5


BUSY = "37, 1980, 1980, 412.30, 700.00, 41, 580.159.04, Not Active, Not Active, Not Active\n"
HELD = "100, 1275, 1980, 699.10, 700.00, 71, 580.159.04, Active, Not Active, Active\n"
MIG = "[N/A], 1980, 1980, 80.00, 700.00, 30, 580.159.04, Not Active, Not Active, Not Active\n"


def test_the_driver_says_what_a_gpu_does() -> None:
    state = read_state(HELD)
    assert state == GpuState(
        100.0, 1275.0, 1980.0, 699.1, 700.0, 71.0, "580.159.04", ("its power limit", "its temperature")
    )
    assert read_state("") is None
    assert read_state("No devices were found\n") is None


def test_a_busy_gpu_is_said() -> None:
    assert remarks_before(read_state(BUSY)) == [
        "the GPU was 37 % busy before anything was run on it: others' work is in the times"
    ]
    assert remarks_before(read_state(MIG)) == []
    assert "no answer" in remarks_before(None)[0]


def test_a_clock_that_is_held_down_is_said() -> None:
    assert remarks_under_load(read_state(HELD)) == [
        "the GPU's clock was held down by its power limit and its temperature, 1275 of 1980 MHz: times are longer"
    ]
    assert remarks_under_load(read_state(BUSY)) == []
    assert remarks_under_load(None) == []


#: As Nsight Compute writes it; the second kernel in other units.
NCU = """==PROF== Connected to process 812
model.py: "quoted" output of the program
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Metric Name","Metric Unit","Metric Value"
"0","812","python","127.0.0.1","void gemm<64, 64>(T1::Params)","1","7","dram__bytes_read.sum","byte","23,552"
"0","812","python","127.0.0.1","void gemm<64, 64>(T1::Params)","1","7","dram__bytes_write.sum","byte","0"
"0","812","python","127.0.0.1","void gemm<64, 64>(T1::Params)","1","7","gpu__time_duration.sum","ns","10,144"
"1","812","python","127.0.0.1","add","1","7","dram__bytes_read.sum","Mbyte","1.50"
"1","812","python","127.0.0.1","add","1","7","dram__bytes_write.sum","Kbyte","2"
"1","812","python","127.0.0.1","add","1","7","gpu__time_duration.sum","us","3.2"
==PROF== Disconnected from process 812
"""


def test_counters_by_kernel() -> None:
    assert read_counters(NCU) == [
        CountedKernel("void gemm<64, 64>(T1::Params)", 23552, 0, 10144.0),
        CountedKernel("add", 1_500_000, 2_000, 3200.0),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "==WARNING== No kernels were profiled.\n",
            "counted no kernel: ==WARNING== No kernels were profiled",
        ),
        ('"ID","Kernel Name"\n"0","add"\n', "another form than expected"),
        (NCU.replace("Mbyte", "furlong"), "another form than expected"),
    ],
)
def test_counters_that_are_none(text: str, message: str) -> None:
    with pytest.raises(CountersError, match=message):
        read_counters(text)


def _ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A command of that name that runs ``body``."""
    program = tmp_path / "ncu"
    program.write_text(f"#!{sys.executable}\nimport sys, time\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_counters_of_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = '==PROF== Profiling "gemm" - 0: 0%....100% - 1 pass'
    _ncu(tmp_path, monkeypatch, f"assert sys.argv[-1] == 'child'\nprint({begun!r})\nprint({NCU!r})")
    told: list[int] = []
    counted = count(["child"], 30.0, told.append)
    assert (len(counted.kernels), counted.complete, told) == (2, True, [1])


def test_counters_of_the_first_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ncu(tmp_path, monkeypatch, f"print({counters._STOPPED!r})\nprint({NCU!r})")
    assert not count(["child"], 30.0).complete


def test_a_step_is_counted_until_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    did: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: did.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: did.append("stop"))
    with counters.counted_step(30.0):
        did.append("step")
    assert did == ["start", "step", "stop"]
    assert counters._STOPPED not in capsys.readouterr().out
    with counters.counted_step(0.01):
        while did[-1] != "stop" or len(did) < 5:
            time.sleep(0.005)
        did.append("rest")
    assert did[3:] == ["start", "stop", "rest", "stop"]
    assert counters._STOPPED in capsys.readouterr().out


@pytest.mark.parametrize(
    ("body", "limit_s", "message"),
    [
        ("print('==ERROR== ERR_NVGPUCTRPERM - no permission'); sys.exit(1)", 30.0, "nobody but root"),
        ("print('no such device', file=sys.stderr); sys.exit(3)", 30.0, "exit status 3: no such device"),
        ("time.sleep(60)", 0.3, r"longer than 0\.3 s, and had come to 0 kernels"),
    ],
)
def test_a_child_that_cannot_be_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, limit_s: float, message: str
) -> None:
    _ncu(tmp_path, monkeypatch, body)
    with pytest.raises(CountersError, match=message):
        count(["child"], limit_s)


def test_no_nsight_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(counters, "_PLACES", ())
    with pytest.raises(CountersError, match="no ncu on the PATH"):
        count(["child"], 1.0)
