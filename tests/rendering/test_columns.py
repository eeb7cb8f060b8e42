from __future__ import annotations

from optrace.rendering.collapse import Folder
from optrace.rendering.columns import columns
from optrace.rendering.options import DrawOptions
from optrace.rendering.phases import passing
from optrace.rendering.picture import Picture
from optrace.rendering.stacking import rows
from tests.rendering.by_hand import HandGraph


def picture(hand: HandGraph) -> Picture:
    return next(Folder(hand.report(), DrawOptions()).pictures())


def in_columns(hand: HandGraph) -> list[int]:
    return [number for _, number in columns(picture(hand)).column.values()]


def test_a_short_chain_is_one_column() -> None:
    hand = HandGraph()
    hand.chain(12)
    assert in_columns(hand) == [0] * 12


def test_a_long_chain_is_cut_into_equal_columns() -> None:
    hand = HandGraph()
    hand.chain(68)  # sqrt(68 / 7.5) = 3
    assert [in_columns(hand).count(number) for number in range(3)] == [23, 22, 23]


def test_modules_are_not_cut() -> None:
    hand = HandGraph()
    last = hand.tensor((4,))
    for number in range(6):
        for _ in range(10):
            out = hand.tensor((4,))
            hand.call("aten.relu.default", [last], [out], module=f"Net.{number}", cls="Block")
            last = out
    found = in_columns(hand)
    assert max(found) == 2
    assert all(len(set(found[start : start + 10])) == 1 for start in range(0, 60, 10))


def test_what_a_phase_hands_on_is_counted_once_a_tensor() -> None:
    hand = HandGraph()
    x, y = hand.tensor((8,)), hand.tensor((8,))
    hand.call("aten.relu.default", [x], [y])
    for _ in range(2):
        hand.call("aten.mul.Tensor", [y], [hand.tensor((8,))], phase="backward")
    (item,) = passing(hand.report(), picture(hand))
    assert (item.src, item.dst, item.tensors, item.nbytes) == ("forward", "backward", 1, 32)


def test_parts_that_nothing_connects_are_put_in_rows() -> None:
    hand = HandGraph()
    for number in range(20):
        hand.chain(1, line=number)
    drawn = picture(hand)
    assert rows(drawn, columns(drawn)) == [(f"n{number}", f"n{number + 8}") for number in range(12)]


def test_a_few_parts_stay_side_by_side() -> None:
    hand = HandGraph()
    for _ in range(8):
        hand.chain(3)
    drawn = picture(hand)
    assert rows(drawn, columns(drawn)) == []
