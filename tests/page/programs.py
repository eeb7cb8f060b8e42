"""Reports made by hand that the browser tests open."""

from __future__ import annotations

from optrace.report import Report
from tests.rendering.by_hand import HandGraph

#: What a page must show as text and never run.
HOSTILE = "</script><img src=x onerror=document.title='owned'>"


def hostile() -> Report:
    """Every place where a program's own text can stand says ``HOSTILE``."""
    hand = HandGraph(program=HOSTILE, notes=(HOSTILE,))
    x = hand.tensor((4, 4), name=HOSTILE, kind="parameter")
    y = hand.tensor((4, 4))
    hand.call(f"evil.{HOSTILE}.default", [x], [y], file=f"/home/me/{HOSTILE}.py", function=HOSTILE, module=HOSTILE, cls=HOSTILE, mode=HOSTILE)  # fmt: skip
    return hand.report()


def many(calls: int = 20_000) -> Report:
    """``calls`` calls in blocks of ten that all differ a little, so that folding has work to do."""
    hand = HandGraph()
    last = hand.tensor((64, 64))
    for number in range(calls):
        block = number // 10
        inside = ("norm", "attn", "attn", "attn", "mlp", "mlp", "mlp", "", "", "")[number % 10]
        out = hand.tensor((64, 64 + block % 7))
        hand.call(
            f"aten.op{number % 13}.default",
            [last],
            [out],
            line=number % 400,
            module=f"Model.blocks.{block}{'.' * bool(inside)}{inside}",
            cls=inside.title() or "Block",
            device_us=1.0 + number % 5,
            read=16384,
            written=16384,
            flops=4096 * (number % 9),
        )
        last = out
    return hand.report()


def empty() -> Report:
    return HandGraph().report()
