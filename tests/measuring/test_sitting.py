"""A sitting without a GPU: its jobs, limits and outputs with commands that stand in, its programs and pairs as a stand-in runs
them."""

from __future__ import annotations

import gc
import gzip
import json
import math
import sys
import time
from collections.abc import Iterator
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import pytest
import torch

from optrace.api import answers_of
from optrace.cost.profiles import pricing
from optrace.measuring.record import read_machine, read_runs
from optrace.report import report
from optrace.tracing import Session, open_session
from optrace.tracing.gaps import Gaps
from tests.diagnosis.findings.programs import PAIRS, Step
from tests.measuring import before_after, sitting
from tests.measuring.before_after import BEFORE_AFTER
from tests.measuring.sitting import Job, Outcome, merge, run, sit
from tests.measuring.sitting_programs import PROGRAMS

MACHINE = {"device": "NVIDIA H200", "torch": "2.11"}
CALL = {"op": "aten.relu.default", "args": [], "kwargs": {}, "out": None, "kernels": []}


def job(folder: Path, code: str, limit_s: float = 60.0, **how: object) -> Job:
    return Job("job", (sys.executable, "-c", code), limit_s, folder / "out" / "made", **how)  # type: ignore[arg-type]


def record(path: Path, name: str, machine: dict[str, str] = MACHINE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in (machine, {"name": name, "ops": [CALL]}))


def test_a_job_leaves_its_file_and_its_log_and_is_not_run_again(tmp_path: Path) -> None:
    made = job(tmp_path, "open('" + str(tmp_path / "out" / "made") + "', 'w'); print('said')")
    assert run(made, tmp_path).result == "done"
    assert (tmp_path / "logs" / "job.txt").read_text() == "said\n"
    assert run(made, tmp_path) == Outcome("job", "there")


def test_what_a_command_prints_is_kept_where_it_ends_well(tmp_path: Path) -> None:
    good = job(tmp_path, "import sys; print('table'); print('warning', file=sys.stderr)", prints=True)
    bad = job(tmp_path, "print('half a table'); raise SystemExit(3)", prints=True)
    outcome = run(bad, tmp_path)
    assert (outcome.result, outcome.code) == ("failed", 3)
    assert not bad.leaves.exists()
    assert run(good, tmp_path).result == "done"
    assert good.leaves.read_text() == "table\n"
    assert "warning" in (tmp_path / "logs" / "job.txt").read_text()


def test_a_job_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    child = f"import time; time.sleep(3); open({str(alive)!r}, 'w')"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert run(job(tmp_path, code, limit_s=1.0), tmp_path).result == "too long"
    time.sleep(3.5)
    assert not alive.exists()


def test_a_job_without_what_it_needs_is_left_out(tmp_path: Path) -> None:
    needs = job(tmp_path, "", only_if=tmp_path / "nothing")
    assert run(needs, tmp_path) == Outcome("job", "left out")


def test_records_are_merged_under_one_machine(tmp_path: Path) -> None:
    whole = tmp_path / "record.jsonl.gz"
    merge(tmp_path / "records", whole)
    assert not whole.exists()
    record(tmp_path / "records" / "b.jsonl.gz", "b", {**MACHINE, "torch": "2.12"})
    record(tmp_path / "records" / "a.jsonl.gz", "a")
    merge(tmp_path / "records", whole)
    assert read_machine(whole).torch == "2.11"
    assert [run.name for run in read_runs(whole)] == ["a", "b"]


def test_stages_in_order_with_the_host_as_it_was_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[tuple[str, ...]] = []

    def made(one: Job, folder: Path) -> Outcome:
        commands.append(one.command)
        if one.name == "calibrate":
            (folder / "profiles" / "host").mkdir(parents=True)
            (folder / "profiles" / "host" / "box.toml").write_text("")
        if one.name.startswith("measure"):
            record(one.leaves, one.name)
        if one.name.startswith("verify"):
            one.leaves.parent.mkdir(exist_ok=True)
            one.leaves.write_text(f'{{"name": "{one.name}"}}\n')
        return Outcome(one.name, "failed" if one.name == "pairs" else "done", 1.0)

    monkeypatch.setattr(sitting, "run", made)
    outcomes = sit(tmp_path, list(sitting.STAGES))
    stages = [outcome.job.partition("-")[0] for outcome in outcomes]
    assert list(dict.fromkeys(stages)) == ["calibrate", "measure", "accuracy", "pairs", "verify"]
    assert stages.count("measure") == len(PROGRAMS)
    assert stages.count("verify") == 10
    host = str(tmp_path / "profiles" / "host" / "box.toml")
    assert all(host in command for command in commands[1:])
    assert len(list(read_runs(tmp_path / "record.jsonl.gz"))) == len(PROGRAMS)
    assert len((tmp_path / "cures.jsonl").read_text().splitlines()) == 10
    told = json.loads((tmp_path / "sitting.json").read_text())
    assert [row["job"] for row in told if row["result"] == "failed"] == ["pairs"]
    assert "failed      1 s  pairs" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["folder"], "this machine has none"),
        (["folder", "dance"], "no stage 'dance' (one of calibrate, measure,"),
    ],
)
def test_bad_input_is_told_before_anything_is_made(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        sitting.main(words)
    assert end.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "folder").exists()


def test_there_are_programs_enough() -> None:
    assert len(PROGRAMS) >= 30


@pytest.mark.parametrize(
    ("name", "waits_for_the_host"),
    [
        ("unet_infer_b1", True),
        ("unet_infer_b8", False),
        ("perceptron_train_b64", True),
        ("perceptron_train_b8192_fused", False),
        ("written_out_infer_bf16", False),
        ("values_read_in_a_loop", True),
    ],
)
def test_programs_run_and_are_bound_by_what_they_are_there_for(name: str, waits_for_the_host: bool) -> None:
    prices = pricing("h200", "xeon-vm")
    with open_session("fake", gpu="h200", answers=answers_of(prices.gpu), assume="zero") as session:
        PROGRAMS[name]()
        session.forget()
        with session.recording():
            PROGRAMS[name]()
    priced = report(session.graph, prices)
    assert (priced.timeline.issue_us > (priced.totals["device_us"].value or 0.0)) == waits_for_the_host


def test_each_pair_is_of_a_kind() -> None:
    assert set(BEFORE_AFTER) <= {make for makes in PAIRS.values() for make in makes}
    assert len(set(BEFORE_AFTER)) == len(BEFORE_AFTER)


def softmax_twice(bad: bool) -> Step:
    """The pair, its twins told apart."""
    step = before_after.programs.softmax_twice(bad)
    timed_as[step] = "before" if bad else "after"
    return step


timed_as: dict[Step, str] = {}


def measured_pair(
    monkeypatch: pytest.MonkeyPatch,
    loops: Iterator[float],
    seconds: float = math.inf,
    kind: str = "repeated-op",
) -> tuple[dict[str, Any], list[str]]:
    """A pair whose first twin takes 30, 31, ... us and whose second takes 10, each turn between two looks at the host's
    speed; and the order in which the twins ran."""
    order: list[str] = []

    def times_us(step: Step) -> tuple[float, float]:
        order.append(timed_as[step])
        return 5.0, 10.0 if order[-1] == "after" else 29.0 + order.count("before")

    monkeypatch.setattr(before_after, "times_us", times_us)
    monkeypatch.setattr(before_after, "loop_turn_us", lambda: next(loops))
    monkeypatch.setattr(before_after, "_SECONDS", seconds)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(Session, "time_gaps", lambda _session, _step: Gaps((), (), 0.0))
    prices = pricing("h200", "xeon-vm")
    with open_session("fake", gpu="h200", answers=answers_of(prices.gpu), assume="zero") as session:
        row = before_after.measured(session, prices, kind, softmax_twice)
    return row, order


def test_a_pair_is_the_median_of_undisturbed_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five turns at half the host's speed count for nothing: as many more are made."""
    wanted = before_after._TURNS
    row, order = measured_pair(monkeypatch, chain([2.0] * 10, repeat(1.0)))
    assert (row["turns"], len(order)) == (wanted, 2 * (wanted + 5))
    assert row["saved_us"] == 20.0 + 5 + (wanted - 1) / 2
    assert (row["before_us"] - row["after_us"], row["after_us"]) == (row["saved_us"], 10.0)
    assert row["loop_us"] == 1.0
    assert row["claimed_us"] > 0
    assert order[:4] == ["before", "after", "after", "before"]
    assert gc.isenabled()


def test_a_pair_on_a_host_that_never_comes_to_rest_takes_the_quietest_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One turn at the host's best; the others at half of it, slower each time: the first of them count."""
    wanted = before_after._TURNS
    loops = chain([1.0, 1.0], (2.0 + turn // 2 for turn in count()))
    row, order = measured_pair(monkeypatch, loops, seconds=0.0)
    assert (row["turns"], len(order)) == (wanted, 2 * wanted)


def test_a_pair_of_which_no_time_is_claimed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    row, _ = measured_pair(monkeypatch, repeat(1.0), kind="python-loop")
    assert row["claimed_us"] is None
