"""Tandem repeats: a row of numbers cut into runs of the same body over and over.

Blocks of 1, 2, 4, ... numbers are ranked by doubling, as suffix arrays are built (Karp, Miller and Rosenberg 1972), so
that two stretches of any length compare in O(1) and without chance. O(n log n) for a row of n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

#: Next occurrences of a block that are taken for the next turn, for each size of block: the first may be a part of the
#: body that comes back within it.
_CANDIDATES = 3


@dataclass(frozen=True, slots=True)
class Run:
    """``count`` times the ``body`` numbers from ``start`` on."""

    start: int
    body: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.body * self.count


def runs(row: Sequence[int], least: Callable[[int, int], int]) -> list[Run]:
    """``row`` as runs from left to right, at each place the one that covers most, of those the shortest body.

    ``least(start, body)`` is how many turns a run must have to be one.

    >>> runs([7, 1, 2, 1, 2, 1, 2, 9], lambda start, body: 2)
    [Run(start=0, body=1, count=1), Run(start=1, body=2, count=3), Run(start=7, body=1, count=1)]
    """
    blocks = _Blocks(row)
    found: list[Run] = []
    at = 0
    while at < len(row):
        best = Run(at, 1, 1)
        for body, count in blocks.repeats_from(at):
            if count >= least(at, body) and (count * body, -body) > (best.count * best.body, -best.body):
                best = Run(at, body, count)
        found.append(best)
        at = best.end
    return found


class _Blocks:
    """Which blocks of a row are equal."""

    def __init__(self, row: Sequence[int]) -> None:
        self._length = len(row)
        # ranks[k][i]: equal for equal blocks of 2**k numbers from i on; next[k][i]: the next such block, or -1.
        self._ranks: list[list[int]] = []
        self._next: list[list[int]] = []
        ranks = np.unique(np.asarray(row, dtype=np.int64), return_inverse=True)[1]
        width = 1
        while len(ranks):
            following = np.full(len(ranks), -1, dtype=np.int64)
            order = np.argsort(ranks, kind="stable")
            again = ranks[order[1:]] == ranks[order[:-1]]
            if not again.any():
                break
            following[order[:-1][again]] = order[1:][again]
            self._ranks.append(ranks.tolist())
            self._next.append(following.tolist())
            paired = ranks[:-width] * (int(ranks.max()) + 1) + ranks[width:]
            ranks = np.unique(paired, return_inverse=True)[1]
            width *= 2

    def repeats_from(self, at: int) -> list[tuple[int, int]]:
        """Bodies that are there twice or more from ``at`` on, and how often."""
        found: dict[int, int] = {}
        for following in self._next:
            other = at
            for _ in range(_CANDIDATES):
                other = following[other] if other < len(following) else -1
                body = other - at
                if other < 0 or other + body > self._length:
                    break
                if body not in found and self._equal(at, other, body):
                    found[body] = self._shared(at, other) // body + 1
            if at >= len(following) or following[at] < 0:
                break
        return list(found.items())

    def _equal(self, one: int, other: int, length: int) -> bool:
        size = length.bit_length() - 1
        if size >= len(self._ranks):
            return False
        ranks, shift = self._ranks[size], length - (1 << size)
        return ranks[one] == ranks[other] and ranks[one + shift] == ranks[other + shift]

    def _shared(self, one: int, other: int) -> int:
        """How many numbers from ``one`` and from ``other`` on are the same."""
        shared = 0
        for size in range(len(self._ranks) - 1, -1, -1):
            ranks = self._ranks[size]
            while other + shared < len(ranks) and ranks[one + shared] == ranks[other + shared]:
                shared += 1 << size
        return shared
