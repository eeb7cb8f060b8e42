from __future__ import annotations

import io

from optrace.cli.summary import show_report
from rich.console import Console

from tests.rendering.by_hand import HandGraph


def test_the_figures_of_a_step_say_what_they_leave_out() -> None:
    hand = HandGraph(steps=2)
    hand.chain(4)
    hand.call("vendor.norm.default", [0], [], kernels=None, device_us=None, source="unknown")
    out = io.StringIO()
    show_report(Console(file=out, width=200), hand.report(), top=0)
    (line,) = (line for line in out.getvalue().splitlines() if line.startswith("a step"))
    assert " us + ?" in line
    assert "2 + ? launches" in line  # 4 known launches in 2 steps
