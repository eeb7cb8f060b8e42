"""The validation view: coloured by the error of prediction, both times on each node."""

from __future__ import annotations

import math

import pytest

from optrace.rendering import Validation, render_bytes
from optrace.rendering.dot import render as render_dot
from optrace.rendering.options import DrawOptions
from optrace.rendering.validation import SHADES, error_text, shade_of
from tests.rendering.by_hand import HandGraph


@pytest.mark.parametrize(
    ("predicted", "measured", "most"),
    [
        (60.0, 100.0, -0.30),
        (70.0, 100.0, -0.30),
        (80.0, 100.0, -0.15),
        (90.0, 100.0, -0.05),
        (104.0, 100.0, 0.05),
        (110.0, 100.0, 0.15),
        (120.0, 100.0, 0.30),
        (200.0, 100.0, math.inf),
        (1.0, 0.0, math.inf),
        (0.0, 0.0, 0.05),
    ],
)
def test_the_shade_of_an_error(predicted: float, measured: float, most: float) -> None:
    assert shade_of(predicted, measured).most == pytest.approx(most)


def picture() -> str:
    hand = HandGraph()
    x, y, z, w = (hand.tensor((4,)) for _ in range(4))
    hand.call("aten.mm.default", [x], [y], device_us=10.0)
    hand.call("aten.view.default", [y], [z], view=True, kernels=0, device_us=0.0)
    hand.call("aten.relu.default", [z], [w], device_us=2.0)
    view = Validation("Test GPU", [8.0, 0.0, 4.0], 21.0, [8.5, 0.0, 4.25])
    return render_dot(hand.report(), DrawOptions(measured=view)).data.decode()


def node(dot: str, name: str) -> str:
    return next(line for line in dot.split("\n\tn") if f"<B>{name}</B>" in line)


def test_both_times_and_the_error_stand_on_a_node() -> None:
    dot = picture()
    mm, relu = node(dot, "mm"), node(dot, "relu")
    assert "predicted ~10 us" in mm
    assert "<B>measured 8 us</B>" in mm
    assert "+25 %" in mm  # 10 / 8
    assert f'fillcolor="{SHADES[5].fill}"' in mm
    assert "-50 %" in relu  # 2 / 4
    assert f'fillcolor="{SHADES[0].fill}"' in relu
    assert "by CUDA events: 8.5 us" in mm


def test_a_measured_time_never_looks_predicted() -> None:
    dot = picture()
    assert "measured ~" not in dot
    assert "predicted 10" not in dot


def test_the_legend_says_what_the_colours_mean() -> None:
    dot = picture()
    assert "predicted (~) against measured on Test GPU" in dot
    assert "measured 21 us" in dot
    assert all(shade.meaning in dot for shade in SHADES)
    assert "67 % of the measured device time" in dot  # 8 of 12
    assert "33 % of the measured device time" in dot


def test_the_picture_without_measurements_is_as_before() -> None:
    hand = HandGraph()
    hand.chain(2)
    assert b"measured" not in render_bytes(hand.report(), "dot").split(b"node [")[1]


def test_error_texts() -> None:
    assert error_text(9.0, 10.0) == "-10 %"
    assert error_text(0.0, 0.0) == "0 %"
    assert error_text(9.99, 10.0) == "0 %"
    assert error_text(2.0, 0.0) == "not launched"
