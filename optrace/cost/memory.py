"""Where storages lie and how much is live: a model of the CUDA caching allocator.

Requests round up to 512 bytes; those up to 1 MiB come from 2 MiB segments, up to 10 MiB from 20 MiB
segments, larger ones from segments of their own rounded to 2 MiB; a freed block is merged with its free
neighbours and reused best fit first (c10/cuda/CUDACachingAllocator.cpp). Addresses matter to the L2 model:
a tensor laid over a block just freed finds its lines in the cache.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optrace.cost.repeats import Repeat
from optrace.graph import Columns
from optrace.graph.columns import Ints

ROUND = 512
SMALL = 1 << 20
SMALL_SEGMENT = 2 << 20
LARGE_SEGMENT = 20 << 20
MIN_LARGE = 10 << 20
ROUND_LARGE = 2 << 20


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Device memory over the run, in bytes.

    By storage: ``address``, where it was put, in a flat address space (-1: it takes no device memory), ``block_bytes``,
    what its block takes, and ``born``, the call that made it (-1: it stood before the first). By call: ``live_after``,
    what is allocated after it, and ``inside``, the addresses of its temporaries, for the calls that were
    ``replayed``; the others go as the replayed call that is their ``stand_in``, call for call.
    ``base`` is live before the first call (parameters, inputs, optimizer state), ``peak`` the most that was
    allocated, first reached in call ``peak_call`` (-1: before the first); ``reserved`` the most that segments took.
    ``library`` is what libraries keep for themselves, in all of these.
    """

    address: Ints
    block_bytes: Ints
    born: Ints
    inside: Mapping[int, tuple[int, ...]]
    base: int
    peak: int
    peak_call: int
    reserved: int
    live_after: Ints
    library: int
    replayed: Ints
    stand_in: Ints

    @property
    def placed(self) -> Ints:
        """The storages that take device memory."""
        return np.flatnonzero(self.address >= 0)


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

    def state(self) -> object:
        """Where there is room: equal while the same is allocated."""
        return tuple(self._free[True]), tuple(self._free[False]), self.allocated, self.reserved

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


#: Turns of a loop of which the allocator's outcome may be the cycle: buffers that are swapped, and swapped back.
_LONGEST_CYCLE = 4


def memory_use(
    columns: Columns,
    temporaries: Sequence[Sequence[int]],
    library: Sequence[int] = (),
    repeated: Sequence[Repeat] = (),
) -> MemoryUse:
    """Replay the run's allocations and frees of device storages through the allocator.

    ``temporaries[i]`` holds the bytes of the temporaries that call i allocates and frees by itself, ``library`` those
    of the blocks that libraries keep. What is ``repeated`` is replayed until the allocator is twice as it was a few
    turns before: from then on all turns are alike.
    """
    replay = _Replay(columns, temporaries, library)
    call = 0
    for repeat in repeated:
        if replay.makes_what_it_uses(repeat):
            replay.run(call, repeat.start)
            replay.turns(repeat)
            call = repeat.end
    replay.run(call, columns.calls)
    return replay.outcome()


class _Replay:
    """The allocator and what came of it so far."""

    def __init__(
        self, columns: Columns, temporaries: Sequence[Sequence[int]], library: Sequence[int]
    ) -> None:
        self._allocator = allocator = Allocator()
        self._temporaries = temporaries
        storages, calls = len(columns.storage_bytes), columns.calls
        self._bytes = columns.storage_bytes.tolist()
        self._placeable = (columns.storage_on_device & (columns.storage_bytes > 0)).tolist()
        self._born, made = created(columns)
        self._made = made.tolist()
        self._made_start = np.searchsorted(self._born[made], np.arange(calls + 1)).tolist()
        self._freed = columns.freed_storage.tolist()
        self._freed_start = np.searchsorted(columns.freed_after, np.arange(calls + 1)).tolist()
        self._address = np.full(storages, -1, dtype=np.int64)
        self._block_bytes = np.zeros(storages, dtype=np.int64)
        self._live_after = np.zeros(calls, dtype=np.int64)
        self._inside: dict[int, tuple[int, ...]] = {}
        self._stand_in = np.arange(calls)
        self._live: dict[int, int] = {}
        for storage in np.flatnonzero(self._born < 0).tolist():
            self._allocate(storage)
        self._library = sum(allocator.block_bytes(allocator.allocate(nbytes)) for nbytes in library)
        self._base = self._peak = allocator.allocated
        self._peak_call = -1
        for storage in self._freed[: self._freed_start[0]]:
            self._free(storage)

    def _allocate(self, storage: int) -> None:
        if self._placeable[storage]:
            block = self._live[storage] = self._allocator.allocate(self._bytes[storage])
            self._address[storage] = block
            self._block_bytes[storage] = self._allocator.block_bytes(block)

    def _free(self, storage: int) -> None:
        block = self._live.pop(storage, None)
        if block is not None:
            self._allocator.free(block)

    def run(self, first: int, end: int) -> None:
        """Replay the calls from ``first`` to before ``end``."""
        allocator, live_after = self._allocator, []
        for call in range(first, end):
            for storage in self._made[self._made_start[call] : self._made_start[call + 1]]:
                self._allocate(storage)
            wanted = self._temporaries[call]
            if wanted:
                blocks = tuple(allocator.allocate(nbytes) for nbytes in wanted)
            if allocator.allocated > self._peak:
                self._peak, self._peak_call = allocator.allocated, call
            if wanted:
                self._inside[call] = blocks
                for block in blocks:
                    allocator.free(block)
            for storage in self._freed[self._freed_start[call] : self._freed_start[call + 1]]:
                self._free(storage)
            live_after.append(allocator.allocated)
        self._live_after[first:end] = live_after

    def makes_what_it_uses(self, repeat: Repeat) -> bool:
        """Whether no turn comes upon storages that stood before the run and that no turn before it used."""
        return bool((self._born[repeat.storages_after(1) : repeat.behind] >= 0).all())

    def turns(self, repeat: Repeat) -> None:
        """Replay turns until their outcome is a cycle, and set down the outcome of the rest."""
        period, states = repeat.period, list[object]()
        turn = 0
        while turn < repeat.count:
            begin = repeat.start + turn * period
            self.run(begin, begin + period)
            turn += 1
            here = slice(repeat.storages_after(turn - 1), repeat.storages_after(turn))
            states.append((self._allocator.state(), self._address[here].tolist()))
            cycle = self._cycle(states)
            if cycle:
                skipped = (repeat.count - turn) // cycle * cycle
                if skipped:
                    self._skip(repeat, turn, cycle, skipped)
                    turn += skipped
                    states.clear()

    @staticmethod
    def _cycle(states: Sequence[object]) -> int:
        """After how many turns the allocator was as it is now, three times in a row; 0 where it was not."""
        for length in range(1, _LONGEST_CYCLE + 1):
            if len(states) > 3 * length and all(
                states[-1 - place] == states[-1 - place - length] for place in range(2 * length)
            ):
                return length
        return 0

    def _skip(self, repeat: Repeat, turn: int, cycle: int, skipped: int) -> None:
        """Set down ``skipped`` turns from ``turn`` on like the ``cycle`` before them, and go on behind them."""
        end = repeat.start + turn * repeat.period
        calls, times = cycle * repeat.period, skipped // cycle
        alike = slice(end, end + times * calls)
        self._stand_in[alike] = np.tile(np.arange(end - calls, end), times)
        self._live_after[alike] = np.tile(self._live_after[end - calls : end], times)
        behind = repeat.storages_after(turn)
        storages = cycle * repeat.storages
        filled = slice(behind, behind + times * storages)
        for column in (self._address, self._block_bytes):
            column[filled] = np.tile(column[behind - storages : behind], times)
        moved = [storage for storage in self._live if behind - storages <= storage < behind]
        for storage in moved:
            self._live[storage + times * storages] = self._live.pop(storage)

    def outcome(self) -> MemoryUse:
        stands_for_itself = self._stand_in == np.arange(len(self._stand_in))
        return MemoryUse(
            address=self._address,
            block_bytes=self._block_bytes,
            born=self._born,
            inside=self._inside,
            base=self._base,
            peak=self._peak,
            peak_call=self._peak_call,
            reserved=self._allocator.reserved,
            live_after=self._live_after,
            library=self._library,
            replayed=np.flatnonzero(stands_for_itself),
            stand_in=self._stand_in,
        )


def created(columns: Columns) -> tuple[Ints, Ints]:
    """The call that made each storage: it first appears as an output; -1: it stood before the first call. And the
    storages that were made, in the order in which they were."""
    storages = len(columns.storage_bytes)
    used, made, row = (np.full(storages + 1, columns.calls + 1, dtype=np.int64) for _ in range(3))
    for first, starts, tensors in (
        (used, columns.operand_start, columns.operands),
        (made, columns.output_start, columns.outputs),
    ):
        # Backwards, so that the first appearance is what remains.
        calls = np.repeat(np.arange(columns.calls), np.diff(starts))
        first[columns.tensor_storage[tensors][::-1]] = calls[::-1]
    row[columns.tensor_storage[columns.outputs][::-1]] = np.arange(len(columns.outputs))[::-1]
    born: Ints = np.where(made < used, made, -1)[:storages]
    numbers = np.flatnonzero(born >= 0)
    return born, numbers[np.argsort(row[numbers], kind="stable")]
