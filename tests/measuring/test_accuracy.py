"""The predictions against 18 programs measured on an H200 (``data/``, made with ``optrace.measuring.recorder`` and
Nsight Compute, torch 2.11). The limits are today's figures with a little room: a change that makes them worse fails."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from optrace.cli import main

from optrace.cost.profiles import Target, pricing
from optrace.cost.rules.table import RULES, Rule
from optrace.cost.work import Work
from optrace.graph import OpNode
from optrace.measuring.accuracy import Accuracy, Distribution, Pair, compare, worst
from optrace.measuring.record import RecordError, read_dram, read_machine, read_runs

DATA = Path(__file__).parent / "data"
RECORD, DRAM = DATA / "h200.jsonl.gz", DATA / "h200_dram.jsonl.gz"


@pytest.fixture(scope="module")
def accuracy() -> Accuracy:
    return compare(read_runs(RECORD), pricing("h200"), dram=read_dram(DRAM))


#: Figure: median and p90 of the relative error that it may have.
LIMITS = {
    "launches": (0.0, 0.0),
    # Of programs that move a MB and more.
    "hbm_bytes": (0.04, 0.14),
    "hbm_read": (0.04, 0.30),
    "hbm_written": (0.08, 0.62),
    "peak_bytes": (0.0, 0.02),
    "flops": (0.0, 0.0),
    "device_us": (0.08, 0.18),
}


#: Bytes that a step moves at least for an error of the share to say something: two of the programs write back 0.6 and
#: 0.02 MB of a working set that fits the L2, and are predicted to move nothing.
MOVES_LITTLE = 1_000_000


def compared(found: Accuracy, name: str) -> list[Pair]:
    """A figure's pairs, of HBM bytes those that are not small."""
    least = MOVES_LITTLE if name.startswith("hbm_") else 0
    return [pair for pair in found.figures[name] if pair.measured >= least]


def broken_limits(found: Accuracy) -> set[str]:
    """Figures that got worse."""
    spreads = {name: Distribution.of(compared(found, name)) for name in LIMITS}
    broken = {
        name
        for name, spread in spreads.items()
        if spread is None or spread.median > LIMITS[name][0] or spread.p90 > LIMITS[name][1]
    }
    return broken | (
        {"op calls"} if found.op_calls_exact < 0.998 or found.programs_within_1pct < 1.0 else set()
    )


def test_no_figure_got_worse(accuracy: Accuracy) -> None:
    assert len(accuracy.figures["launches"]) == 18
    assert broken_limits(accuracy) == set()
    little = [pair for pair in accuracy.figures["hbm_bytes"] if pair.measured < MOVES_LITTLE]
    assert [pair.program for pair in little] == ["mlp_train_b64_adamw", "item_in_loop"]
    assert all(pair.predicted < MOVES_LITTLE for pair in little)


#: The same for 38 programs of ``sitting_programs.py`` and the host as it was calibrated before them.
SITTING_LIMITS = {
    "launches": (0.0, 0.011),
    "peak_bytes": (0.0, 0.03),
    "device_us": (0.036, 0.121),
    "wall_us": (0.061, 0.145),
    "wall_us_measured_kernels": (0.059, 0.145),
}


def test_a_sitting_with_its_calibrated_host_got_no_worse() -> None:
    host = str(DATA / "h200_sitting_host.toml")
    found = compare(read_runs(DATA / "h200_sitting.jsonl.gz"), pricing("h200", host))
    spreads = {name: Distribution.of(found.figures[name]) for name in SITTING_LIMITS}
    for name, (median, p90) in SITTING_LIMITS.items():
        spread = spreads[name]
        assert spread is not None
        assert spread.count == 38
        assert spread.median <= median, name
        assert spread.p90 <= p90, name
    assert found.op_calls_exact >= 0.996
    assert found.bounds.share >= 0.935


def test_the_limits_break_when_a_rule_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules of products that launch one kernel more, read twice, count half the FLOPs and allocate 64 MiB."""

    def spoiled(rule: Rule) -> Rule:
        def price(node: OpNode, target: Target) -> Work:
            work = rule(node, target)
            return replace(
                work,
                kernels=(work.kernels or 0) + 1,
                rereads=(*work.rereads, *work.reads),
                matmul_flops=(work.matmul_flops or 0) // 2,
                reserved=work.reserved + (64 << 20),
            )

        return price

    for name in ("mm", "addmm", "bmm", "convolution"):
        monkeypatch.setitem(RULES, f"aten.{name}", spoiled(RULES[f"aten.{name}"]))
    worse = compare(read_runs(RECORD), pricing("h200"), dram=read_dram(DRAM))
    assert broken_limits(worse) >= {"launches", "hbm_bytes", "peak_bytes", "flops", "op calls"}


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


def test_nothing_measured_is_no_relative_error() -> None:
    pairs = [Pair("a", 110, 100), Pair("b", 12, 0), Pair("c", 0, 0)]
    assert [pair.error for pair in pairs] == [pytest.approx(0.1), None, 0.0]
    spread = Distribution.of(pairs)
    assert spread is not None
    assert (spread.count, spread.measured_zero) == (2, 1)
    assert (spread.max, spread.mean) == (pytest.approx(0.1), pytest.approx((0.1 + 0.0) / 2))
    assert [pair.program for pair in worst(pairs, 9)] == ["b", "a"]
    assert Accuracy({"launches": pairs}, [], {}).programs_within_1pct == pytest.approx(1 / 3)


def test_the_command_says_that_nothing_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program with an addition that launched nothing, and one that launched its kernel."""
    tensor = {"t": [[4], [1], "float32", "cuda", 0, 16, 0]}
    made = {"t": [[4], [1], "float32", "cuda", 1, 16, 0]}
    kernel = {"kind": "kernel", "name": "add", "us": 1.0}
    rows = [
        {"name": name, "ops": [{"op": "aten.add.Tensor", "args": [tensor, tensor], "kwargs": {}, "out": made, "kernels": kernels}]}
        for name, kernels in (("none", []), ("one", [kernel]))
    ]  # fmt: skip
    path = tmp_path / "r.jsonl"
    lines = [{"device": "NVIDIA H200", "torch": "2.11"}, *rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["accuracy", str(path)]) == 0
    out = capsys.readouterr().out
    assert "1 + 1 measured 0" in out
    assert "~1 / 0  measured 0" in out
    assert "inf" not in out
    assert main(["accuracy", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["launches"] == {
        "count": 1, "median": 0.0, "mean": 0.0, "p90": 0.0, "max": 0.0, "bias": 0.0, "measured_zero": 1,
        "op_calls_exact": 1 / 2, "programs_within_1pct": 1 / 2,
    }  # fmt: skip
    assert found["programs"][0]["launches"] == {"predicted": 1, "measured": 0, "error": None}
    assert main(["accuracy", str(path), "--only", "none", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["launches"]["measured_zero"] == 1


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
        (["accuracy", str(RECORD), "--op", "aten.zebra"], "no call of 'aten.zebra' in any program"),
        (["accuracy", str(RECORD), "--dram", "none.gz"], "cannot read none.gz: No such file or directory"),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1
