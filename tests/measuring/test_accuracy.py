"""The predictions against 16 programs measured on an H200 (``data/``, made with ``optrace.measuring.recorder`` and
Nsight Compute, torch 2.11). The limits are today's figures with a little room: a change that makes them worse fails."""

import gzip
import json
from pathlib import Path

import pytest
from optrace.cli import main

from optrace.cost.profiles import pricing
from optrace.measuring.accuracy import Accuracy, Distribution, Pair, compare
from optrace.measuring.record import RecordError, read_dram, read_machine, read_runs

DATA = Path(__file__).parent / "data"
RECORD, DRAM = DATA / "h200.jsonl.gz", DATA / "h200_dram.jsonl.gz"


@pytest.fixture(scope="module")
def accuracy() -> Accuracy:
    return compare(read_runs(RECORD), pricing("h200"), dram=read_dram(DRAM))


def test_launches(accuracy: Accuracy) -> None:
    assert len(accuracy.figures["launches"]) == 16
    assert accuracy.op_calls_exact >= 0.998
    assert accuracy.programs_within_1pct == 1.0


@pytest.mark.parametrize(
    ("figure", "median", "p90"),
    [
        ("hbm_bytes", 0.08, 0.42),
        ("hbm_written", 0.20, 0.78),
        ("peak_bytes", 0.001, 0.02),
        ("flops", 0.0, 0.0),
    ],
)
def test_distribution(accuracy: Accuracy, figure: str, median: float, p90: float) -> None:
    spread = Distribution.of(accuracy.figures[figure])
    assert spread is not None
    assert spread.median <= median
    assert spread.p90 <= p90


def test_kernel_lists_that_do_not_line_up_are_named(accuracy: Accuracy) -> None:
    assert accuracy.not_comparable == {"gcn_train_100k_edges": "55 kernels with counters, 67 in the record"}


def test_one_op() -> None:
    narrowed = compare(read_runs(RECORD), pricing("h200"), op="aten.addmm")
    assert {row.op for row in narrowed.op_classes} == {"aten.addmm.default"}
    assert set(narrowed.figures) == {"launches"}


def test_errors_are_relative_and_signed() -> None:
    pairs = [Pair("a", 110, 100), Pair("b", 80, 100), Pair("c", 100, 100)]
    assert [pair.error for pair in pairs] == pytest.approx([0.1, -0.2, 0.0])
    spread = Distribution.of(pairs)
    assert spread is not None
    assert (spread.count, spread.median, spread.max, spread.bias) == (
        3,
        pytest.approx(0.1),
        pytest.approx(0.2),
        0.0,
    )
    assert spread.mean == pytest.approx((0.1 + 0.2 + 0.0) / 3)
    assert Distribution.of([]) is None


def test_the_machine_is_named() -> None:
    machine = read_machine(RECORD)
    assert machine.device == "NVIDIA H200"
    assert machine.torch.startswith("2.11")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no machine of a record"),
        ("{}\n", "line 1: no machine of a record"),
        ('{"device": "x", "torch": "2.11"}\n{"name": 3}\n', "line 2: no program of a record"),
        ('{"device": "x", "torch": "2.11"}\nnot json\n', "line 2: no program of a record"),
    ],
)
def test_a_file_that_is_no_record(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write(text)
    with pytest.raises(RecordError, match=message):
        list(read_runs(path))


def test_a_broken_archive_and_a_missing_file(tmp_path: Path) -> None:
    broken = tmp_path / "r.jsonl.gz"
    broken.write_bytes(RECORD.read_bytes()[:2000])
    with pytest.raises(RecordError, match="cannot read"):
        list(read_runs(broken))
    with pytest.raises(RecordError, match="No such file"):
        read_machine(tmp_path / "none.jsonl")


def test_the_command_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accuracy", str(RECORD), "--dram", str(DRAM), "--only", "mlp", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in found["programs"]} == {"mlp_train_b64_adamw", "mlp_train_b8192_fused"}
    for figure in ("launches", "hbm_bytes", "flops", "peak_bytes", "device_us", "wall_us", "issue_us"):
        assert set(found[figure]) >= {"median", "mean", "p90", "max", "bias"}
    assert found["launches"]["op_calls_exact"] == 1.0
    assert found["launches"]["programs_within_1pct"] == 1.0


def test_the_command_prints_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accuracy", str(RECORD), "--dram", str(DRAM), "--only", "poolformer"]) == 0
    out = capsys.readouterr().out
    for words in ("timm_poolformer_s12_infer_b8", "worst ten", "launches by op", "HBM bytes of kernels"):
        assert words in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["accuracy", "none.jsonl.gz"], "cannot read none.jsonl.gz: No such file or directory"),
        (["accuracy", str(RECORD), "--only", "zebra"], "no program with 'zebra' in its name"),
        (["accuracy", str(RECORD), "--gpu", "h900"], "no GPU profile fits 'h900'"),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1
