from __future__ import annotations

import dataclasses

import msgspec
import pytest

from optrace.rendering import missing_figures, provenance, scoreboard_rows, tax_layers, top_ops, verdict_line
from optrace.rendering.scoreboard import peak_storages
from tests.rendering.by_hand import HandGraph


def test_a_partial_sum_says_so(toy: HandGraph) -> None:
    rows = {row.label: row for row in scoreboard_rows(toy.report())}
    # mm, gelu, add, the copy of the scalar and two mul_; nobody knows what vendor.norm launches.
    assert rows["launches"].value == "6 + ?"
    assert rows["HBM traffic"].value == "94.2 kB + ?"
    # 94.2 kB at 2 TB/s.
    assert rows["bandwidth ceiling"].value == "~0.0471 us + ?"
    assert all(rows[name].value.endswith(" us + ?") for name in ("wall clock", "back to back"))
    assert rows["arithmetic"].value == "74.8 kFLOP + ?"


def test_no_traffic_is_not_an_unknown_intensity() -> None:
    hand = HandGraph()
    hand.chain(1, flops=8)
    rows = {row.label: row for row in scoreboard_rows(hand.report())}
    assert rows["ridge point"].detail.endswith("; this program has no HBM traffic")


def test_the_missing_figures_are_named_with_their_op(toy: HandGraph) -> None:
    lines = missing_figures(toy.report())
    assert lines == (
        "launches, kernels, hbm_bytes, hbm_read, hbm_written, flops, device_us: not known for vendor.norm.default x1",
    )


def test_an_incomplete_record_is_said() -> None:
    hand = HandGraph(incomplete=("the program raised ValueError",))
    hand.chain(1)
    assert missing_figures(hand.report()) == ("the record is incomplete: the program raised ValueError",)
    guessed = HandGraph(incomplete=("guess: aten.nonzero.default was told [0, 1]",))
    guessed.chain(1)
    assert missing_figures(guessed.report()) == (
        "the record rests on a guess: aten.nonzero.default was told [0, 1]",
    )


def test_every_time_is_marked_as_predicted(toy: HandGraph) -> None:
    report = toy.report()
    for row in scoreboard_rows(report):
        for text in (row.value, *row.detail.split()):
            assert not text.endswith("us") or text == "us" or text.startswith("~") or text == "0", row
    assert provenance(report)[0].startswith("All times (~) are predicted for Test GPU")
    assert "not measured (made up)" in provenance(report)[0]


def test_top_ops_are_ranked_by_wall_clock_and_sum_their_calls(toy: HandGraph) -> None:
    report = toy.report()
    ops = top_ops(report, 99)
    assert [op.share for op in ops] == sorted((op.share for op in ops), reverse=True)
    assert [op.op for op in top_ops(report, 2)] == [op.op for op in ops[:2]]
    (scaled,) = (op for op in ops if op.op == "aten.mul_.Tensor")
    assert (scaled.cost.calls, scaled.cost.hbm_bytes) == (2, 2 * (16384 + 16384))
    shares = sum(op.share for op in ops)
    assert shares + report.timeline.host_tail_us / report.timeline.wall_us == pytest.approx(1.0)


def test_the_tax_has_four_layers(toy: HandGraph) -> None:
    layers = tax_layers(toy.report())
    assert [(layer.name, layer.us) for layer in layers] == [
        ("Python", 8 * 3.0),
        ("autograd", 0.0),
        ("dispatch", 8 * 4.0),
        ("launch", 6 * 4.0),
    ]
    assert sum(layer.share for layer in layers) == pytest.approx(1.0)


def test_the_memory_at_the_peak_by_use(toy: HandGraph) -> None:
    # x, h, y, z of 8 x 64 floats, the weight of 64 x 64, a scalar in a block of 512 bytes.
    rows = {row.label: row for row in scoreboard_rows(toy.report())}
    total = 4 * 2048 + 16384 + 512
    assert rows["peak memory"].value == f"{total / 1024:.1f} KiB"
    assert rows["  at the peak"].value == "6 storages"
    shares = [round(100 * part / total, 1) for part in (16384, 2048, 3 * 2048 + 512)]
    assert shares == [65.3, 8.2, 26.5]
    assert rows["  at the peak"].detail == "parameters 65 %, inputs 8.2 %, temporaries 27 %"


@pytest.mark.parametrize(
    ("gpu_bytes", "fits", "said"),
    [
        (2 << 20, True, "fits in 2 MiB: 2 MiB reserved"),
        ((2 << 20) - 1, None, "may not fit in 2 MiB: 2 MiB reserved with what is free between blocks"),
        (20_000, False, "does not fit in 19.5 KiB"),
    ],
)
def test_whether_it_fits(toy: HandGraph, gpu_bytes: int, fits: bool | None, said: str) -> None:
    report = toy.report()
    gpu = msgspec.structs.replace(report.pricing.gpu, memory_bytes=gpu_bytes)
    pricing = dataclasses.replace(report.pricing, gpu=gpu)
    report = dataclasses.replace(report, priced=dataclasses.replace(report.priced, pricing=pricing))
    assert report.fits is fits
    rows = {row.label: row for row in scoreboard_rows(report)}
    assert rows["peak memory"].detail.startswith(said + ";")


def test_what_is_alive_at_the_peak_says_who_made_it(toy: HandGraph) -> None:
    weight, x, h, *_ = peak_storages(toy.report(), 9)
    assert (weight.name, weight.life, weight.line) == ("Block.fc.weight", "all along", "")
    assert (x.name, x.holding.use) == ("x", "inputs")
    assert (h.name, h.module, h.line) == ("%1 aten.mm.default", "Block.fc", "/home/me/toy.py:4")
    assert h.life == "from %1"
    assert h.share == 2048 / (4 * 2048 + 16384 + 512)


def test_a_run_of_nothing_has_a_scoreboard() -> None:
    report = HandGraph().report()
    assert verdict_line(report) == "nothing was dispatched"
    assert {row.label: row.value for row in scoreboard_rows(report)}["launches"] == "0"
    assert top_ops(report, 5) == ()


def test_a_run_of_views_takes_no_time() -> None:
    hand = HandGraph()
    hand.chain(2, "aten.t.default", view=True, kernels=0, device_us=0.0)
    assert verdict_line(hand.report()).startswith("nothing to bound: no call launches anything on the GPU")
    assert [row.label for row in scoreboard_rows(hand.report())] == ["launches", "arithmetic"]


def test_an_op_with_unknown_launches_may_have_launched() -> None:
    hand = HandGraph()
    x = hand.tensor((4, 8))
    hand.call("vendor.norm.default", [x], [], kernels=None, device_us=None, source="unknown")
    assert verdict_line(hand.report()) == "nothing to bound: no call is known to launch anything on the GPU"


def test_what_stays_in_the_l2_is_said_to() -> None:
    hand = HandGraph()
    x = hand.tensor((4, 8))
    hand.call("aten.relu.default", [x], [hand.tensor((4, 8))])
    [row] = [row for row in scoreboard_rows(hand.report()) if row.label == "HBM traffic"]
    assert (row.value, row.detail) == (
        "0 B",
        "all of it stays in the L2 of 60 MiB; the tensors touched hold 256 B",
    )
