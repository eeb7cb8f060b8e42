"""Where storages lie and how much is live: a model of the CUDA caching allocator.

Requests round up to 512 bytes; those up to 1 MiB come from 2 MiB segments, up to 10 MiB from 20 MiB
segments, larger ones from segments of their own rounded to 2 MiB; a freed block is merged with its free
neighbours and reused best fit first (c10/cuda/CUDACachingAllocator.cpp). Addresses matter to the L2 model:
a tensor laid over a block just freed finds its lines in the cache.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from optrace.graph import OpGraph

ROUND = 512
SMALL = 1 << 20
SMALL_SEGMENT = 2 << 20
LARGE_SEGMENT = 20 << 20
MIN_LARGE = 10 << 20
ROUND_LARGE = 2 << 20


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Device memory over the run, in bytes.

    ``addresses[storage]`` is where a storage was put, in a flat address space; ``standing`` storages were there
    before the first call, ``created`` maps a call to those that it made, ``inside`` to the addresses of its
    temporaries. ``base`` is live before the first call (parameters, inputs, optimizer state), ``peak`` the most
    that was allocated, reached in call ``peak_call`` (-1: before the first); ``reserved`` the most that segments took;
    ``live_after[i]`` what is allocated after call i. ``library`` is what libraries keep for themselves, in all
    of these; ``block_bytes[storage]`` what a storage's block takes.
    """

    addresses: dict[int, int]
    standing: tuple[int, ...]
    created: dict[int, tuple[int, ...]]
    inside: dict[int, tuple[int, ...]]
    base: int
    peak: int
    peak_call: int
    reserved: int
    live_after: list[int]
    library: int = 0
    block_bytes: dict[int, int] = field(default_factory=dict)


class Allocator:
    """Best-fit allocation from segments, as the CUDA caching allocator does it on one stream."""

    def __init__(self) -> None:
        self.allocated = 0
        self.reserved = 0
        self._next_segment = 0
        # Free blocks by pool: sorted (size, address), and who stands beside whom inside a segment.
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._size: dict[int, int] = {}
        self._segment: dict[int, int] = {}
        self._following: dict[int, int] = {}
        self._previous: dict[int, int] = {}
        self._is_free: dict[int, bool] = {}
        self._is_small: dict[int, bool] = {}

    def allocate(self, nbytes: int) -> int:
        """The address of a new block of at least ``nbytes``."""
        size = max(ROUND, -(-nbytes // ROUND) * ROUND)
        small = size <= SMALL
        free = self._free[small]
        place = bisect_left(free, (size, -1))
        block = free.pop(place)[1] if place < len(free) else self._add_segment(size, small)
        rest = self._size[block] - size
        if (small and rest >= ROUND) or (not small and rest > SMALL):
            self._split(block, size)
        self._is_free[block] = False
        self.allocated += self._size[block]
        return block

    def block_bytes(self, block: int) -> int:
        """What a block takes: the request rounded up, and what was too small to be split off."""
        return self._size[block]

    def free(self, block: int) -> None:
        """Give a block back; it merges with free neighbours of its segment."""
        self.allocated -= self._size[block]
        self._is_free[block] = True
        following = self._following.get(block)
        if following is not None and self._is_free[following]:
            self._merge(block, following)
        previous = self._previous.get(block)
        if previous is not None and self._is_free[previous]:
            self._merge(previous, block)
            block = previous
        insort(self._free[self._is_small[block]], (self._size[block], block))

    def _add_segment(self, size: int, small: bool) -> int:
        if small:
            segment = SMALL_SEGMENT
        elif size < MIN_LARGE:
            segment = LARGE_SEGMENT
        else:
            segment = -(-size // ROUND_LARGE) * ROUND_LARGE
        block = self._next_segment
        self._next_segment += segment
        self.reserved += segment
        self._size[block] = segment
        self._is_small[block] = small
        return block

    def _split(self, block: int, size: int) -> None:
        rest = block + size
        self._size[rest] = self._size[block] - size
        self._size[block] = size
        self._is_small[rest] = self._is_small[block]
        self._is_free[rest] = True
        following = self._following.get(block)
        if following is not None:
            self._following[rest] = following
            self._previous[following] = rest
        self._following[block] = rest
        self._previous[rest] = block
        insort(self._free[self._is_small[rest]], (self._size[rest], rest))

    def _merge(self, block: int, following: int) -> None:
        """Join ``following`` onto ``block``; whichever of them waits in a free list leaves it."""
        free = self._free[self._is_small[block]]
        for part in (block, following):
            place = bisect_left(free, (self._size[part], part))
            if place < len(free) and free[place] == (self._size[part], part):
                free.pop(place)
        self._size[block] += self._size.pop(following)
        after = self._following.pop(following, None)
        del self._previous[following], self._is_free[following], self._is_small[following]
        if after is None:
            del self._following[block]
        else:
            self._following[block] = after
            self._previous[after] = block


def memory_use(
    graph: OpGraph, temporaries: Sequence[Sequence[int]], library: Sequence[int] = ()
) -> MemoryUse:
    """Replay the run's allocations and frees of device storages through the allocator.

    ``temporaries[i]`` holds the bytes of the temporaries that call i allocates and frees by itself, ``library`` those
    of the blocks that libraries keep.
    """
    allocator = Allocator()
    blocks: dict[int, int] = {}
    addresses: dict[int, int] = {}
    block_bytes: dict[int, int] = {}

    def allocate(storage: int) -> None:
        nbytes = graph.storages[storage].nbytes
        if storage not in addresses and graph.storages[storage].device != "cpu" and nbytes:
            block = blocks[storage] = addresses[storage] = allocator.allocate(nbytes)
            block_bytes[storage] = allocator.block_bytes(block)

    created = _created_by_call(graph)
    made = {storage for storages in created.values() for storage in storages}
    for storage in range(len(graph.storages)):
        if storage not in made:
            allocate(storage)
    standing = tuple(addresses)
    kept = sum(allocator.block_bytes(allocator.allocate(nbytes)) for nbytes in library)
    base = peak = allocator.allocated
    peak_call = -1
    for storage in graph.freed_after(-1):
        if storage in blocks:
            allocator.free(blocks.pop(storage))
    live_after: list[int] = []
    used: dict[int, tuple[int, ...]] = {}
    for call in range(len(graph)):
        for storage in created.get(call, ()):
            allocate(storage)
        inside = [allocator.allocate(nbytes) for nbytes in temporaries[call]]
        if allocator.allocated > peak:
            peak, peak_call = allocator.allocated, call
        if inside:
            used[call] = tuple(inside)
            for block in inside:
                allocator.free(block)
        for storage in graph.freed_after(call):
            if storage in blocks:
                allocator.free(blocks.pop(storage))
        live_after.append(allocator.allocated)
    placed = {
        call: here
        for call, storages in created.items()
        if (here := tuple(storage for storage in storages if storage in addresses))
    }
    return MemoryUse(
        addresses=addresses,
        standing=standing,
        created=placed,
        inside=used,
        base=base,
        peak=peak,
        peak_call=peak_call,
        reserved=allocator.reserved,
        live_after=live_after,
        library=kept,
        block_bytes=block_bytes,
    )


def _created_by_call(graph: OpGraph) -> dict[int, list[int]]:
    """Storages that first appear as the output of a call; the others stood before the first call."""
    created: dict[int, list[int]] = {}
    seen: set[int] = set()
    for call in range(len(graph)):
        seen.update(graph.tensor_storage(tensor) for tensor in graph.operands(call))
        for tensor in graph.outputs(call):
            storage = graph.tensor_storage(tensor)
            if storage >= 0 and storage not in seen:
                seen.add(storage)
                created.setdefault(call, []).append(storage)
    return created
