"""Stretches of a run that repeat exactly: steps of a training loop, turns of a long one.

What repeats to the last storage is replayed until its outcome repeats too, and then not again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optrace.cost.signatures import Hashes, mixed
from optrace.graph import Columns
from optrace.graph.columns import Bools, Ints

#: Calls by which a place in the run is recognized, so many periods are tried, and a stretch has to repeat so often.
_RECOGNIZED_BY = 8
_TRIED = 8
FEWEST = 6


@dataclass(frozen=True, slots=True)
class Repeat:
    """``count`` times the same ``period`` calls from call ``start`` on, each time on the very same storages or on those
    that took their place: ``storages`` new ones, numbered one behind the other, the last time those before ``behind``.
    """

    start: int
    period: int
    count: int
    storages: int
    behind: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.count

    def storages_after(self, turn: int) -> int:
        """The number of the storage that comes next once so many turns are over."""
        return self.behind - (self.count - turn) * self.storages


def repeats(columns: Columns, kinds: Ints) -> tuple[Repeat, ...]:
    """The stretches that repeat, in order and apart from one another; ``kinds`` says which calls do the same to tensors
    of the same sizes."""
    found: list[Repeat] = []
    storages = _Storages.of(columns)
    taken = np.zeros(columns.calls, dtype=np.bool_)
    candidates = [(period, start, end) for period in _periods(kinds) for start, end in _alike(kinds, period)]
    # The longest first; of those that are as long, the one of the shorter period.
    candidates.sort(key=lambda candidate: (candidate[1] - candidate[2], candidate[0]))
    for period, start, end in candidates:
        if taken[start:end].any():
            continue
        repeat = storages.repeat(period, start, end)
        if repeat is not None:
            taken[repeat.start : repeat.end] = True
            found.append(repeat)
    return tuple(sorted(found, key=lambda repeat: repeat.start))


def _periods(kinds: Ints) -> list[int]:
    """Distances after which calls come again like the last few, those that reach over most calls first."""
    calls = len(kinds)
    if calls < FEWEST * 2:
        return []
    width = min(_RECOGNIZED_BY, calls // FEWEST)
    windows: Hashes = mixed(*(kinds[place : calls - width + 1 + place] for place in range(width)))
    order = np.argsort(windows, kind="stable")
    same = windows[order[1:]] == windows[order[:-1]]
    distances, counts = np.unique((order[1:] - order[:-1])[same], return_counts=True)
    best = np.argsort(-distances * counts, kind="stable")[:_TRIED]
    return [int(distance) for distance in distances[best]]


def _alike(kinds: Ints, period: int) -> list[tuple[int, int]]:
    """Where calls are of the kinds of those one period before, often enough."""
    stretches = _stretches(kinds[period:] == kinds[:-period])
    long = stretches[stretches[:, 1] - stretches[:, 0] >= (FEWEST - 1) * period]
    return [(start, end + period) for start, end in long.tolist()]


def _stretches(flags: Bools) -> NDArray[np.int64]:
    """Start and end of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return edges.reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class _Storages:
    """Which storages each call uses, makes and frees: where its rows begin, and the rows. ``made`` is how many there
    were before each call, and after the last."""

    made: Ints
    rows: tuple[tuple[Ints, Ints], ...]

    @classmethod
    def of(cls, columns: Columns) -> _Storages:
        used = columns.operand_start, columns.tensor_storage[columns.operands]
        given = columns.output_start, columns.tensor_storage[columns.outputs]
        freed = np.searchsorted(columns.freed_after, np.arange(columns.calls + 1)), columns.freed_storage
        # They are numbered as they appear.
        highest = np.full(columns.calls + 1, -1, dtype=np.int64)
        for starts, storages in (used, given):
            owner = np.repeat(np.arange(1, columns.calls + 1), np.diff(starts))
            np.maximum.at(highest, owner, storages)
        return cls(np.maximum.accumulate(highest) + 1, (used, given, freed))

    def repeat(self, period: int, start: int, end: int) -> Repeat | None:
        """The longest part of a stretch of which each turn uses, makes and frees storages as the one before."""
        made = self.made
        storages = int(made[end] - made[end - period])
        calls = np.arange(start + period, end)
        fits: Bools = made[calls + 1] - made[calls - period + 1] == storages
        for starts, rows in self.rows:
            fits &= _rows_fit(starts, rows, calls, period, storages)
        stretches = _stretches(fits)
        if not len(stretches):
            return None
        first, last = max(stretches.tolist(), key=lambda stretch: stretch[1] - stretch[0])
        count = (last - first) // period + 1
        if count < FEWEST:
            return None
        begin = start + first
        return Repeat(begin, period, count, storages, int(made[begin + count * period]))


def _rows_fit(starts: Ints, storages: Ints, calls: Ints, period: int, made: int) -> Bools:
    """For each call, whether its rows name the storages of one period before, or those that took their place."""
    counts = starts[calls + 1] - starts[calls]
    fits: Bools = counts == starts[calls - period + 1] - starts[calls - period]
    calls, counts = calls[fits], counts[fits]
    place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    now = storages[np.repeat(starts[calls], counts) + place]
    before = storages[np.repeat(starts[calls - period], counts) + place]
    differs = (now != before) & (now != before + made)
    wrong = np.zeros(len(calls), dtype=np.bool_)
    wrong[np.repeat(np.arange(len(calls)), counts)[differs]] = True
    fits[np.flatnonzero(fits)[wrong]] = False
    return fits
