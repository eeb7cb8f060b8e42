"""Which of the touched bytes cross HBM: an L2 that keeps what was touched last.

Residency is by address. The caching allocator hands the block just freed to the next tensor of its size,
so a temporary is often overwritten in L2 and never reaches HBM. Written lines are paid when they are
evicted, by the call that evicts them, or at the end of the run not at all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from optrace.cost.work import Access, Work

#: Residency is kept by pieces of storages. Fine enough for small models, coarse enough for a million calls.
PIECE = 256 << 10


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that crossed HBM."""

    read: int
    written: int


class L2Cache:
    """Least recently used pieces of device memory, dirty or clean; a small storage is one piece."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._used = 0
        # Address of a piece -> (bytes, dirty).
        self._pieces: OrderedDict[int, tuple[int, bool]] = OrderedDict()

    def run(self, work: Work, addresses: dict[int, int]) -> Traffic:
        """Touch what a call reads, then what it writes."""
        read = written = 0
        for access in work.reads:
            traffic = self._touch(access, addresses, write=False)
            read += traffic.read
            written += traffic.written
        for access in work.writes:
            written += self._touch(access, addresses, write=True).written
        return Traffic(read, written)

    def _touch(self, access: Access, addresses: dict[int, int], *, write: bool) -> Traffic:
        start = addresses.get(access.tensor.storage)
        if start is None:
            return Traffic(0, 0)
        if access.nbytes > 2 * self._capacity:
            return self._stream(start, access, write=write)
        missed = evicted = 0
        for piece, nbytes in _pieces(start, access):
            held, dirty = self._pieces.pop(piece, (0, False))
            self._used -= held
            if not write:
                missed += max(0, nbytes - held)
            size = max(held, nbytes)
            self._pieces[piece] = (size, dirty or write)
            self._used += size
            evicted += self._evict()
        return Traffic(missed, evicted)

    def _stream(self, start: int, access: Access, *, write: bool) -> Traffic:
        """A tensor far larger than the cache leaves only its tail there; nobody walks its lines for that."""
        evicted = sum(nbytes for nbytes, dirty in self._pieces.values() if dirty)
        self._pieces.clear()
        self._used = 0
        pieces = list(_pieces(start, access))
        for piece, nbytes in pieces[-(self._capacity // PIECE) :]:
            self._pieces[piece] = (nbytes, write)
            self._used += nbytes
        passed = access.nbytes - self._used
        return Traffic(0 if write else access.nbytes, evicted + (passed if write else 0))

    def _evict(self) -> int:
        """Make room; the dirty bytes that had to go."""
        evicted = 0
        while self._used > self._capacity:
            _, (nbytes, dirty) = self._pieces.popitem(last=False)
            self._used -= nbytes
            evicted += nbytes if dirty else 0
        return evicted


def _pieces(start: int, access: Access) -> Iterator[tuple[int, int]]:
    """The pieces of a storage at ``start`` that an access falls in, with the bytes touched in each."""
    first = access.tensor.offset * access.tensor.itemsize
    end = first + access.nbytes
    piece = first // PIECE * PIECE
    while piece < end:
        yield start + piece, min(end, piece + PIECE) - max(first, piece)
        piece += PIECE
