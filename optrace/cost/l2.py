"""Which of the touched bytes cross HBM: an L2 that replaces lines at random.

A line brought in throws out any other with equal chance, so of what lay in a cache of ``C`` bytes a share
``exp(-I / C)`` is left once ``I`` bytes more were brought in. Hits bring in nothing. Dirty lines are paid
when they are thrown out, by the call that does it. On an H200's counters this fits where least-recently-used
does not: a small working set is written back bit by bit although it would fit.

Residency is by address. The caching allocator hands the block just freed to the next tensor of its size, so
a temporary is overwritten in the cache and most of it never reaches HBM.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

from optrace.cost.work import Access, Work

#: A storage is followed in pieces: one a MiB, so that a stream finds its start thrown out and its end there.
PIECE = 1 << 20
MAX_PIECES = 32

#: Share of the L2 that behaves so. Fitted to the counters of an H200 (60 MiB by torch's device properties).
USABLE_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that crossed HBM."""

    read: int
    written: int


class _Piece:
    """Part of a storage: bytes of it in the cache, dirty bytes among them, as of ``inserted`` bytes brought
    in; ``extent`` is the most that one call touched of it."""

    __slots__ = ("dirty", "extent", "inserted", "resident", "size")

    def __init__(self, size: float, resident: float, dirty: float, inserted: float) -> None:
        self.size = size
        self.resident = resident
        self.dirty = dirty
        self.inserted = inserted
        self.extent = 0.0


@dataclass(frozen=True, slots=True)
class _Block:
    """A storage in place: its range of addresses and its pieces."""

    start: int
    end: int
    pieces: list[_Piece]


class L2Cache:
    """The cache over a run: ``place`` a storage when it is allocated, then ``run`` each call's work."""

    def __init__(self, l2_bytes: int) -> None:
        self._capacity = l2_bytes * USABLE_SHARE
        self._inserted = 0.0
        self._dirty = 0.0
        self._blocks: dict[int, _Block] = {}
        # What lies in the cache by address: (start, storage), of dead storages too until they are overlaid.
        self._places: list[tuple[int, int]] = []

    def place(self, storage: int, address: int, nbytes: int) -> None:
        """A storage begins at ``address``: it takes over the lines of what lay there."""
        end = address + nbytes
        resident = dirty = 0.0
        first = bisect_left(self._places, (address, -1))
        if first and self._blocks[self._places[first - 1][1]].end > address:
            first -= 1
        last = bisect_left(self._places, (end, -1))
        for start, old in self._places[first:last]:
            block = self._blocks.pop(old)
            share = (min(end, block.end) - max(address, start)) / (block.end - start)
            for piece in block.pieces:
                self._age(piece)
                resident += share * piece.resident
                dirty += share * piece.dirty
        del self._places[first:last]
        count = min(MAX_PIECES, -(-nbytes // PIECE))
        pieces = [
            _Piece(nbytes / count, resident / count, dirty / count, self._inserted) for _ in range(count)
        ]
        self._blocks[storage] = _Block(address, end, pieces)
        insort(self._places, (address, storage))

    def run(self, work: Work) -> Traffic:
        """Touch what a call reads and writes, all side by side from first to last byte."""
        touches = [*self._touches(work.reads, write=False), *self._touches(work.writes, write=True)]
        touches.sort(key=lambda touch: touch[0])
        missed = evicted = 0.0
        for _, piece, nbytes, write in touches:
            self._age(piece)
            extent = max(piece.extent, nbytes)
            brought_in = nbytes - min(piece.resident, nbytes * min(1.0, piece.resident / extent))
            evicted += self._insert(brought_in)
            if write:
                dirtied = nbytes * (1.0 - min(1.0, piece.dirty / extent))
                piece.dirty = min(piece.size, piece.dirty + dirtied)
                self._dirty += dirtied
            else:
                missed += brought_in
            piece.extent = extent
            piece.resident = min(piece.size, piece.resident + brought_in)
            piece.inserted = self._inserted
        return Traffic(round(missed), round(evicted))

    def _touches(self, accesses: Sequence[Access], *, write: bool) -> list[tuple[float, _Piece, float, bool]]:
        """(how far into the call, piece, bytes of it touched, written) for each piece that is touched."""
        found = []
        for access in accesses:
            tensor = access.tensor
            block = self._blocks.get(tensor.storage)
            if block is None:
                continue
            if len(block.pieces) == 1:
                found.append((0.5, block.pieces[0], float(access.nbytes), write))
                continue
            size = block.pieces[0].size
            first = tensor.offset * tensor.itemsize
            span = max(access.nbytes, min(_span(access), block.end - block.start - first))
            low, high = int(first / size), min(len(block.pieces), math.ceil((first + span) / size))
            for number in range(low, high):
                inside = min(first + span, (number + 1) * size) - max(first, number * size)
                if inside > 0:
                    share = inside / span
                    progress = (max(first, number * size) - first) / span + share / 2
                    found.append((progress, block.pieces[number], access.nbytes * share, write))
        return found

    def _age(self, piece: _Piece) -> None:
        """Bring a piece up to now: part of it was thrown out since it was looked at."""
        if piece.inserted != self._inserted:
            left = math.exp((piece.inserted - self._inserted) / self._capacity)
            piece.resident *= left
            piece.dirty *= left
            piece.inserted = self._inserted

    def _insert(self, nbytes: float) -> float:
        """Bring in ``nbytes``; the dirty bytes that had to go."""
        self._inserted += nbytes
        evicted = self._dirty * -math.expm1(-nbytes / self._capacity)
        self._dirty -= evicted
        return evicted


def _span(access: Access) -> int:
    """Bytes from the first to behind the last one of a tensor."""
    tensor = access.tensor
    if 0 in tensor.shape:
        return 0
    steps = sum((n - 1) * abs(s) for n, s in zip(tensor.shape, tensor.stride, strict=True))
    return (1 + steps) * tensor.itemsize
