from __future__ import annotations

from collections.abc import Callable

from optrace.rendering import render_bytes
from tests.rendering.by_hand import HandGraph


def listing(hand: HandGraph) -> list[str]:
    text = render_bytes(hand.report(), "txt").decode("ascii")
    return [" ".join(line.split()) for line in text.splitlines() if line.startswith("%")]


def test_the_toy_block(toy: HandGraph, golden: Callable[[str, str], None]) -> None:
    golden("toy.txt", render_bytes(toy.report(), "txt").decode("ascii"))


def test_values_are_named_by_the_call_that_made_them() -> None:
    hand = HandGraph()
    x, a, b, c = (hand.tensor((4,), name=name) for name in ("x", "", "", ""))
    hand.call("aten.relu.default", [x], [a])
    hand.call("aten.add_.Tensor", [a, x], [], writes=[a], alpha=2)
    hand.call("aten.split.Tensor", [a], [b, c])
    hand.call("aten.mul.Tensor", [b, c], [hand.tensor((4,))])
    assert [line.split(" :")[0] for line in listing(hand)] == [
        "%0 = aten.relu.default(@x)",
        "%1 = aten.add_.Tensor(%0, @x, alpha=2)",
        "%2 = aten.split.Tensor(%1)",
        "%3 = aten.mul.Tensor(%2.0, %2.1)",
    ]


def test_a_price_that_is_not_known_is_a_question_mark(toy: HandGraph) -> None:
    line = next(line for line in listing(toy) if "vendor" in line)
    assert line == "%4 = vendor.norm.default(%3) : f32[] ? unknown /home/me/toy.py:7"


def test_other_letters_are_escaped() -> None:
    hand = HandGraph("été.py")
    hand.chain(1)
    assert render_bytes(hand.report(), "txt").startswith(b"\\xe9t\\xe9.py (fake trace")
