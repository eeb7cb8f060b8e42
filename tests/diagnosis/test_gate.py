from __future__ import annotations

import pytest

from optrace.diagnosis.budget import BudgetError, Limit
from optrace.diagnosis.findings import find
from optrace.diagnosis.gate import hold, store
from tests.rendering.by_hand import HandGraph


def net(*, blocks: int = 2, adds: int = 1, syncs: int = 0) -> HandGraph:
    """In each block a product of 100 bytes and some sums of 10 each; then values that are read."""
    hand = HandGraph("net.py")
    x = hand.tensor((4, 8))
    for block in range(blocks):
        where = {"module": f"Net.blocks.{block}", "cls": "Block"}
        hand.call("aten.mm.default", [x, x], [hand.tensor((4, 8))], line=3, read=60, written=40, **where)
        for _ in range(adds):
            hand.call("aten.add.Tensor", [x, x], [hand.tensor((4, 8))], line=4, read=5, written=5, **where)
    for _ in range(syncs):
        hand.call("aten._local_scalar_dense.default", [x], [], line=9, kernels=0, memcpys=1, host_wait=True)
    return hand


def held(hand: HandGraph, *limits: Limit, stored=None):
    report = hand.report()
    return hold(report, find(report), limits, stored)


def test_a_count_at_its_limit_passes_and_one_more_fails() -> None:
    launches = 2 * (1 + 1)
    at, under = held(net(), Limit("launches", value=launches), Limit("launches", value=launches - 1))
    assert (at.value, at.over, at.culprits) == (launches, False, ())
    assert (under.over, under.fails) == (True, True)
    assert [(c.what, c.module, c.amount, c.grew) for c in under.culprits] == [
        ("aten.mm.default x2", "Net.blocks.*", 2, False),
        ("aten.add.Tensor x2", "Net.blocks.*", 2, False),
    ]
    assert str(under.source) == "/home/me/toy.py:3"


def test_a_time_over_its_limit_only_warns() -> None:
    (wall,) = held(net(), Limit("wall_us", value=1))
    assert (wall.over, wall.fails) == (True, False)
    # Each op's part of the wall clock, waiting for the host included.
    assert sum(culprit.amount for culprit in wall.culprits) == pytest.approx(wall.value)


def test_each_module_that_fits_is_held_and_the_worst_is_told() -> None:
    hand = net()
    x = hand.tensor((4, 8))
    hand.call("aten.add.Tensor", [x, x], [hand.tensor((4, 8))], module="Net.blocks.1.mlp", cls="MLP")
    (most,) = held(hand, Limit("launches", "Net.blocks.*", value=2))
    assert (most.value, most.where, most.over) == (2 + 1, "Net.blocks.1", True)


def test_against_a_baseline_with_a_tolerance_and_what_grew() -> None:
    before = net(adds=10)
    limits = (Limit("launches", over_baseline=0.1), Limit("hbm_bytes", over_baseline=0.0))
    stored = store(before.report(), (), limits)
    assert stored.values == {"launches": 2 * 11, "hbm_bytes": 2 * (100 + 10 * 10)}
    launches, traffic = held(net(adds=11), *limits, stored=stored)
    # 24 launches are within 22 + 10 %; 420 bytes are more than 400.
    assert (launches.value, launches.allowed, launches.over) == (24, pytest.approx(24.2), False)
    assert (traffic.value, traffic.baseline, traffic.over) == (420, 400, True)
    assert [(c.what, c.amount, c.grew) for c in traffic.culprits] == [("aten.add.Tensor x22", 2 * 10, True)]


def test_a_limit_without_its_baseline_is_an_error() -> None:
    with pytest.raises(BudgetError, match="no baseline was stored for launches"):
        held(net(), Limit("launches", over_baseline=0.0))


def test_findings_of_a_kind_are_counted_where_they_are() -> None:
    (found,) = held(net(syncs=3), Limit("findings.sync", value=2))
    assert (found.value, found.over, found.fails) == (3, True, True)
    assert str(found.source) == "/home/me/toy.py:9"


def test_calls_without_a_figure_are_told() -> None:
    hand = net()
    hand.call("vendor.norm.default", [0], [], kernels=None, device_us=None, source="unknown")
    (launches,) = held(hand, Limit("launches", value=100))
    assert (launches.unknown, launches.over) == (1, False)


def test_too_much_memory_is_told_by_what_is_alive_at_the_peak() -> None:
    hand = HandGraph("net.py")
    weight = hand.tensor((128, 128), kind="parameter")
    held_on_to = [hand.tensor((256, 128)) for _ in range(2)]
    for tensor in held_on_to:
        hand.call("aten.mm.default", [weight], [tensor], line=3, module="Net.blocks.1", cls="Block")
    (peak,) = held(hand, Limit("peak_bytes", value=1))
    told = [(culprit.what, culprit.module, culprit.amount) for culprit in peak.culprits]
    assert told[:2] == [
        ("aten.mm.default x2", "Net.blocks.*", 2 * 256 * 128 * 4),
        ("parameters x1", "", 128 * 128 * 4),
    ]
    (block,) = held(hand, Limit("peak_bytes", "Net.blocks.*", value=1))
    assert block.culprits == peak.culprits
