"""Which of the touched bytes cross HBM: an L2 that replaces lines at random.

A line brought in throws out any other with equal chance, so of what lay in a cache of ``C`` bytes a share
``exp(-I / C)`` is left once ``I`` bytes more were brought in. Hits bring in nothing. Dirty lines are paid
when they are thrown out, by the call that does it. On an H200's counters this fits where least-recently-used
does not: a working set is written back bit by bit although it would fit.

Residency is by address. The caching allocator hands the block just freed to the next tensor of its size, so
a temporary is overwritten in the cache and most of it never reaches HBM. The cache is full of something from
the start.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from optrace.cost.work import MATRIX_KINDS, Access, Work

#: A storage is followed in pieces: one a MiB, so that a stream finds its start thrown out and its end there.
PIECE = 1 << 20
MAX_PIECES = 32

#: Share of the L2 that behaves so: the best of 0.6 to 1.0 on the counters of an H200, over 18 programs and again
#: over 27 others.
USABLE_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that crossed HBM."""

    read: int
    written: int


class _Piece:
    """Part of a storage: bytes of it in the cache and dirty bytes among them, as of ``age``; ``extent`` is the
    most that one call touched of it."""

    __slots__ = ("age", "dirty", "extent", "resident", "size")

    def __init__(self, size: float, resident: float, dirty: float, age: float) -> None:
        self.size = size
        self.resident = resident
        self.dirty = dirty
        self.age = age
        self.extent = 0.0


@dataclass(frozen=True, slots=True)
class _Block:
    """A storage in place: its range of addresses and its pieces."""

    start: int
    end: int
    pieces: list[_Piece]


#: Numbers from here on stand for parts of dead storages.
_LEFTOVER = 1 << 40

#: The address of a place.
_start = itemgetter(0)

#: How far into the call, piece, bytes of it, written or read.
_Touch = tuple[float, _Piece, float, bool]


class L2Cache:
    """The cache over a run: ``place`` a storage when it is allocated, then ``run`` each call's work."""

    def __init__(self, l2_bytes: int) -> None:
        self._capacity = l2_bytes * USABLE_SHARE
        # Bytes brought in so far over the capacity.
        self._age = 0.0
        self._dirty = 0.0
        self._blocks: dict[int, _Block] = {}
        # What lies in the cache by address: (start, storage), of dead storages too until they are overlaid.
        self._places: list[tuple[int, int]] = []
        self._leftovers = 0

    def place(self, storage: int, address: int, nbytes: int) -> None:
        """A storage begins at ``address``: it takes over the lines of what lay there."""
        end = address + nbytes
        resident = dirty = 0.0
        first = bisect_left(self._places, address, key=_start)
        if first and self._blocks[self._places[first - 1][1]].end > address:
            first -= 1
        last = bisect_left(self._places, end, key=_start)
        overlaid = self._places[first:last]
        del self._places[first:last]
        for _, old in overlaid:
            block = self._blocks.pop(old)
            for piece in block.pieces:
                self._bring_up(piece)
            taken = self._cut(block, max(address, block.start), min(end, block.end))
            resident += taken[0]
            dirty += taken[1]
            # What is left beside the newcomer stays in the cache, under a number of its own.
            for low, high in ((block.start, address), (end, block.end)):
                if low < high:
                    self._leftovers += 1
                    self._put(_LEFTOVER + self._leftovers, low, high, *self._cut(block, low, high))
        self._put(storage, address, end, resident, dirty)

    def holds(self, storage: int) -> bool:
        """Whether the storage is in place: nothing was laid over it."""
        return storage in self._blocks

    def _put(self, number: int, start: int, end: int, resident: float, dirty: float) -> None:
        count = min(MAX_PIECES, -(-(end - start) // PIECE))
        size = (end - start) / count
        pieces = [_Piece(size, resident / count, dirty / count, self._age) for _ in range(count)]
        self._blocks[number] = _Block(start, end, pieces)
        insort(self._places, (start, number), key=_start)

    @staticmethod
    def _cut(block: _Block, low: int, high: int) -> tuple[float, float]:
        """Resident and dirty bytes between two addresses of a block."""
        resident = dirty = 0.0
        for number, piece in enumerate(block.pieces):
            start = block.start + number * piece.size
            share = (min(high, start + piece.size) - max(low, start)) / piece.size
            if share > 0:
                resident += share * piece.resident
                dirty += share * piece.dirty
        return resident, dirty

    def run(self, work: Work, scratch: Sequence[int] = ()) -> Traffic:
        """Touch what a call reads and writes, side by side from first to last byte; then what it reads again, and
        its temporaries (``scratch``: the numbers they were placed under)."""
        first = [*self._touches(work.reads, write=False), *self._touches(work.writes, write=True)]
        # What a product reads again its rule knows to have left the L2; another kernel's second pass may find it.
        gone = sum(access.nbytes for access in work.rereads) if work.kind in MATRIX_KINDS else 0
        again = [] if gone else self._touches(_passes(work.rereads), write=False)
        for number in scratch:
            block = self._blocks[number]
            size = block.end - block.start
            first += _spread(block, 0, size, size, write=True)
            again += _spread(block, 0, size, size, write=False)
        missed = evicted = 0.0
        for touches in (first, again):
            touches.sort(key=lambda touch: touch[0])
            for _, piece, nbytes, write in touches:
                self._bring_up(piece)
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
                piece.age = self._age
        evicted += self._insert(gone)
        return Traffic(round(missed) + gone, round(evicted))

    def _touches(self, accesses: Iterable[Access], *, write: bool) -> list[_Touch]:
        found: list[_Touch] = []
        for access in accesses:
            tensor = access.tensor
            block = self._blocks.get(tensor.storage)
            if block is not None:
                first = tensor.offset * tensor.itemsize
                span = max(access.nbytes, min(_span(access), block.end - block.start - first))
                found += _spread(block, first, span, access.nbytes, write=write)
        return found

    def _bring_up(self, piece: _Piece) -> None:
        """Bring a piece up to now: part of it was thrown out since it was looked at."""
        if piece.age != self._age:
            left = math.exp(piece.age - self._age)
            piece.resident *= left
            piece.dirty *= left
            piece.age = self._age

    def _insert(self, nbytes: float) -> float:
        """Bring in ``nbytes``; the dirty bytes that had to go."""
        self._age += nbytes / self._capacity
        evicted = self._dirty * -math.expm1(-nbytes / self._capacity)
        self._dirty -= evicted
        return evicted


def _spread(block: _Block, first: int, span: int, nbytes: int, *, write: bool) -> list[_Touch]:
    """``nbytes`` touched evenly over ``span`` bytes of a block from ``first`` on, by its pieces."""
    if len(block.pieces) == 1:
        return [(0.5, block.pieces[0], float(nbytes), write)]
    size = block.pieces[0].size
    found = []
    low, high = int(first / size), min(len(block.pieces), math.ceil((first + span) / size))
    for number in range(low, high):
        start = max(first, number * size)
        inside = min(first + span, (number + 1) * size) - start
        if inside > 0:
            share = inside / span
            found.append(((start - first) / span + share / 2, block.pieces[number], nbytes * share, write))
    return found


def _passes(accesses: Iterable[Access]) -> Iterator[Access]:
    """Whole passes over a tensor, and the rest, of an access to more bytes than the tensor has."""
    for access in accesses:
        whole = access.tensor.nbytes
        left = access.nbytes
        while whole and left > whole:
            yield Access(access.tensor, whole)
            left -= whole
        if left:
            yield Access(access.tensor, left)


def _span(access: Access) -> int:
    """Bytes from the first to behind the last one of a tensor."""
    tensor = access.tensor
    if 0 in tensor.shape:
        return 0
    steps = sum((n - 1) * abs(s) for n, s in zip(tensor.shape, tensor.stride, strict=True))
    return (1 + steps) * tensor.itemsize
