"""The cures against programs captured and compiled on an H200 (``data/h200_cures.jsonl``: five that the rules were
written with, three that they were not; torch 2.11). The limits are today's figures with a little room."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from optrace.cli import main

from optrace.cost.profiles import pricing
from optrace.measuring.accuracy import Distribution, Pair
from optrace.measuring.cures import CuresAccuracy, compare_cures, read_cures
from optrace.measuring.record import RecordError, read_runs
from optrace.report import report

DATA = Path(__file__).parent / "data"
RECORD, CURES = DATA / "h200.jsonl.gz", DATA / "h200_cures.jsonl"
HELD_OUT = {"mlp_train_b64_adamw", "naive_attn_train_autocast", "item_in_loop"}


@pytest.fixture(scope="module")
def accuracy() -> CuresAccuracy:
    return compare_cures(read_runs(RECORD), read_cures(CURES), pricing("h200"))


def median(pairs: list[Pair]) -> float:
    spread = Distribution.of(pairs)
    assert spread is not None
    return spread.median


def test_every_program_is_compared(accuracy: CuresAccuracy) -> None:
    assert accuracy.missing == []
    assert len(accuracy.figures["compiled_k"]) == 5 + 3
    assert len(accuracy.figures["graph_us"]) == 5


def test_launches_of_compiled_programs(accuracy: CuresAccuracy) -> None:
    pairs = list(accuracy.figures["compiled_k"])
    assert median(pairs) <= 0.08
    assert max(abs(pair.error) for pair in pairs if pair.program in HELD_OUT) <= 0.12


def test_torch_compile_with_its_defaults_takes_no_epilogue_into_products(accuracy: CuresAccuracy) -> None:
    """16 products of 8 rows with three pointwise calls behind each: 33 launches measured, of which 16 are cuBLAS's own. With
    ``epilogues`` each would be one kernel with what is behind it, as only max-autotune generates them."""
    measured = read_cures(CURES)["toy_small_8x64_f32_x16"].compiled_k
    run = next(run for run in read_runs(RECORD) if run.name == "toy_small_8x64_f32_x16")
    priced = report(run.graph, pricing("h200"))
    assert measured == priced.cures.fused_row.launches == 2 * 16 + 1
    assert replace(priced, epilogues=True).cures.fused_row.launches == 16 + 1


def test_whether_a_graph_is_worth_it_by_the_eager_step_as_it_was_measured(accuracy: CuresAccuracy) -> None:
    """Small: 115.5 us + 42 + 0.59 x 80 instead of 1,834.6. The host of that hour has no part in it."""
    rows = {name: (said, right) for name, said, right in accuracy.worth["graph_measured_eager"]}
    assert rows["toy_small_8x64_f32_x16"] == (True, True)
    assert rows["unet_infer_b4_256"] == (True, True)
    assert accuracy.right("graph_measured_eager") == 1.0


def test_a_replay_from_measured_kernels(accuracy: CuresAccuracy) -> None:
    """Without the device model's own error: 115.5 us of kernels in 80 launches, 115.5 + 42 + 0.59 * 80."""
    pairs = {pair.program: pair for pair in accuracy.figures["graph_us_measured_kernels"]}
    assert pairs["toy_small_8x64_f32_x16"].predicted == pytest.approx(115.5 + 42 + 0.59 * 80)
    assert median(list(pairs.values())) <= 0.03


def test_peak_memory_of_compiled_attention(accuracy: CuresAccuracy) -> None:
    """Scores, masked scores and weights of 8 x 16 x 1024 x 1024 bf16 each are one tensor, written in place."""
    pairs = {pair.program: pair for pair in accuracy.figures["compiled_peak"]}
    assert abs(pairs["naive_attn_infer_bf16"].error) < 0.1
    assert pairs["naive_attn_infer_bf16"].predicted < -1.5 * 8 * 16 * 1024 * 1024 * 2


def test_worth_it_counts_what_is_right() -> None:
    rows = [("a", True, True), ("b", False, True), ("c", False, False), ("d", True, True)]
    assert CuresAccuracy({}, {"graph": rows}, []).right("graph") == 3 / 4


def test_the_command_adds_the_cures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accuracy", str(RECORD), "--cures", str(CURES), "--only", "toy_small", "--json"]) == 0
    cures = json.loads(capsys.readouterr().out)["cures"]
    assert cures["compiled_k"]["count"] == 1
    assert cures["fusion_worth_it"] == {"count": 1, "right": 1.0}
    assert "toy_small_8x64_f32_x16" not in cures["missing"]
    assert "unet_infer_b4_256" in cures["missing"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot read"),
        ("", "no measured cure in it"),
        ("{", "line 1: no measured cure"),
        ('{"name": "x", "eager_us": "slow"}', "line 1: no measured cure"),
    ],
)
def test_a_file_that_is_no_record_of_cures(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "cures.jsonl"
    if text is not None:
        file.write_text(text)
    with pytest.raises(RecordError, match=said):
        read_cures(file)
