from __future__ import annotations

import pytest

from optrace.diagnosis.compare import NothingInCommonError, compare, folded
from tests.rendering.by_hand import HandGraph


def block(hand: HandGraph, name: str, *ops: str, root: str = "Net", dtype: str = "float32") -> None:
    for op in ops:
        x, y = hand.tensor((4, 8), dtype=dtype), hand.tensor((4, 8), dtype=dtype)
        hand.call(op, [x], [y], module=f"{root}.{name}", cls="Block", read=128, written=128)


def rows(before: HandGraph, after: HandGraph) -> list[tuple[str, str, str, str, int]]:
    found = compare(before.report(), after.report())
    return [(c.kind, c.op, c.module, c.moved_from, c.calls) for c in found.changes]


def test_a_run_compared_with_itself_has_no_change() -> None:
    hand = HandGraph()
    block(hand, "a", "aten.sin.default", "aten.cos.default")
    found = compare(hand.report(), hand.report())
    assert found.changes == ()
    assert found.same == ((0, 0), (1, 1))
    assert found.before == found.after


def test_ops_are_aligned_by_module_and_not_by_position() -> None:
    before, after = HandGraph(), HandGraph()
    block(before, "a", "aten.sin.default", "aten.cos.default")
    block(before, "b", "aten.exp.default")
    # b runs first now, and a has another op in front.
    block(after, "b", "aten.exp.default")
    block(after, "a", "aten.tan.default", "aten.sin.default", "aten.cos.default")
    assert rows(before, after) == [("came", "aten.tan.default", "Net.a", "", 1)]


def test_came_went_and_moved() -> None:
    before, after = HandGraph(), HandGraph()
    block(before, "a", "aten.sin.default", "aten.cos.default", "aten.exp.default")
    block(before, "b", "aten.abs.default")
    block(after, "a", "aten.sin.default", "aten.tanh.default")
    block(after, "b", "aten.abs.default", "aten.exp.default")
    assert sorted(rows(before, after)) == [
        ("came", "aten.tanh.default", "Net.a", "", 1),
        ("moved", "aten.exp.default", "Net.b", "Net.a", 1),
        ("went", "aten.cos.default", "Net.a", "", 1),
    ]


def test_repeats_in_layers_are_one_row_and_its_figures_are_their_sum() -> None:
    before, after = HandGraph(), HandGraph()
    for layer in range(3):
        block(before, f"blocks.{layer}", "aten.sin.default", "aten.cos.default")
        block(after, f"blocks.{layer}", "aten.sin.default")
    (change,) = compare(before.report(), after.report()).changes
    assert (change.kind, change.module, change.calls) == ("went", "Net.blocks.*", 3)
    assert change.before == (1, 3, 5)
    assert change.after == ()
    assert change.launches == -3
    assert change.hbm_bytes == -3 * (128 + 128)


def test_the_changes_add_up_to_the_change_of_the_wall_clock() -> None:
    before, after = HandGraph(), HandGraph()
    block(before, "a", "aten.sin.default", "aten.cos.default", "aten.exp.default")
    block(after, "a", "aten.sin.default", "aten.exp.default", "aten.tanh.default", "aten.tanh.default")
    found = compare(before.report(), after.report())
    parts = sum(change.wall_us for change in found.changes) + found.same_wall_us
    assert parts == pytest.approx(found.after.wall_us - found.before.wall_us)


def test_another_dtype_is_the_same_call_changed() -> None:
    before, after = HandGraph(), HandGraph()
    block(before, "a", "aten.sin.default")
    block(after, "a", "aten.sin.default", dtype="bfloat16")
    assert rows(before, after) == [("changed", "aten.sin.default", "Net.a", "", 1)]


def test_a_renamed_outermost_class_is_the_same_program() -> None:
    before, after = HandGraph(), HandGraph()
    block(before, "a", "aten.sin.default", root="Net")
    block(after, "a", "aten.sin.default", root="FasterNet")
    assert rows(before, after) == []


def test_two_programs_are_an_error_that_names_both() -> None:
    before, after = HandGraph("one.py"), HandGraph("other.py")
    block(before, "a", "aten.sin.default", "aten.cos.default")
    block(after, "b", "aten.exp.default")
    with pytest.raises(NothingInCommonError, match=r"two programs, one\.py and other\.py: 0 of 1 launching"):
        compare(before.report(), after.report())


def test_two_programs_that_share_a_stray_op_are_an_error_too() -> None:
    before, after = HandGraph("one.py"), HandGraph("other.py")
    block(before, "a", *(["aten.sin.default"] * 30))
    block(after, "a", *(["aten.cos.default"] * 29), "aten.sin.default")
    with pytest.raises(NothingInCommonError, match="1 of 30 launching calls"):
        compare(before.report(), after.report())


def test_one_program_of_which_little_is_left_can_be_compared() -> None:
    before, after = HandGraph("one.py"), HandGraph("one.py")
    block(before, "a", *(["aten.sin.default"] * 30))
    block(after, "a", *(["aten.cos.default"] * 29), "aten.sin.default")
    assert sorted(rows(before, after)) == [
        ("came", "aten.cos.default", "Net.a", "", 29),
        ("went", "aten.sin.default", "Net.a", "", 29),
    ]


def test_layer_numbers_are_folded() -> None:
    assert folded("GPT.blocks.11.mlp.0") == "GPT.blocks.*.mlp.*"
