"""The host's clock: what passes between two calls is the program's own Python.

Times of another machine are scaled by how long both take for a turn of the reference loop.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

import torch


class _Turn(torch.nn.Module):
    def forward(self, value: int) -> int:
        return value


def quickest_us(turn: Callable[[], object], *, rounds: int = 5, turns: int = 50) -> float:
    """Microseconds of a turn: the quickest of ``rounds`` of many."""
    best = float("inf")
    for _ in range(rounds):
        start = perf_counter_ns()
        for _ in range(turns):
            turn()
        best = min(best, (perf_counter_ns() - start) / turns / 1000)
    return best


def reference_loop_us(rounds: int = 7, turns: int = 150) -> float:
    """Microseconds of a turn of a loop like those between ops: a module call, dictionary look-ups. About 1 ms in all."""
    module = _Turn()
    seen: dict[int, int] = {}

    def turn() -> None:
        seen[1] = module(1)
        seen.get(2)

    return quickest_us(turn, rounds=rounds, turns=turns)
