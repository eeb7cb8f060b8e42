"""What the parts of recording a call take in a row, where the processor's caches hold them.

    python -m tests.bench.parts

Minima of 15 rounds of 300 turns, process time, the garbage collector off. Of a whole call, the op itself is left out and
its encoding is in, in turns of many calls.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from optrace.tracing import open_session

TURNS = 300
ROUNDS = 15


def quickest_us(things: Callable[[], list[Any]], turn: Callable[[Any], object]) -> tuple[float, float]:
    """Microseconds of a turn with each of ``things``, and of letting one go afterwards."""
    turns: list[float] = []
    frees: list[float] = []
    for _ in range(ROUNDS):
        given = things()
        start = time.process_time()
        for thing in given:
            turn(thing)
        end = time.process_time()
        del thing
        given.clear()
        turns.append(end - start)
        frees.append(time.process_time() - end)
    return min(turns) / TURNS * 1e6, min(frees) / TURNS * 1e6


def main() -> None:
    """Print a line a part."""
    gc.disable()
    torch.set_num_threads(1)
    with open_session("cpu", device="cpu") as session, torch._C.DisableTorchFunction():
        tracer = session._tracer
        seen, key = tracer._identities.seen, tracer._key
        bias, x, weight = torch.randn(8), torch.randn(4, 8), torch.randn(8, 8)
        addmm = torch.ops.aten.addmm.default
        frame = sys._getframe()

        def same() -> list[Any]:
            return [x] * TURNS

        def new() -> list[Any]:
            return [torch.empty_like(x) for _ in range(TURNS)]

        def views() -> list[Any]:
            return [x.view(8, 4) for _ in range(TURNS)]

        def inputs(_: Any) -> Any:
            operands: list[Any] = []
            return [key(value, operands) for value in (bias, x, weight)]

        def call(out: Any) -> Any:
            return tracer.call(lambda *_: out, addmm, (bias, x, weight), {})

        parts: dict[str, tuple[Callable[[], list[Any]], Callable[[Any], object]]] = {
            "nothing": (same, lambda _: None),
            "a known tensor": (same, seen),
            "a view": (views, seen),
            "a tensor with a storage of its own": (new, seen),
            "inputs of addmm, known": (same, inputs),
            "a line": (same, lambda _: tracer._sources.walk(frame, ())),
            "a whole addmm, result known": (same, call),
            "a whole addmm, a storage of its own": (new, call),
        }
        print(f"torch {torch.__version__}")
        for name, (things, turn) in parts.items():
            turn_us, free_us = quickest_us(things, turn)
            print(f"{name:36} {turn_us:6.2f} us, gone {free_us:5.2f} us")


if __name__ == "__main__":
    main()
