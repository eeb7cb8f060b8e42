"""HBM traffic of each call of a run: the L2 model, run where its answer is not known yet.

What was touched before more other bytes than the cache holds is gone, so what a call moves depends on no more than the
calls before it that touched as many. Layers, steps and turns of a loop do the same after the same: of calls that come
after such equal stretches only the first is run through the model, after a stretch that fills the cache.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from optrace.cost.l2 import L2Cache, Touches, Traffic, most_held, touches_of
from optrace.cost.memory import MemoryUse
from optrace.cost.signatures import Hashes, side_by_side
from optrace.cost.work import Work
from optrace.cost.works import Works
from optrace.graph import Columns
from optrace.graph.columns import Ints

#: Where cuBLAS's own workspace lies: behind everything that the allocator hands out.
_WORKSPACE = 1 << 60

#: Where threads keep what they spill, the same place for all kernels.
_LOCAL_MEMORY = 1 << 61

#: A stretch that settles a call touches this many times what the cache holds: what was touched once may stay in part.
_SETTLED = 2.0


@dataclass(frozen=True, slots=True)
class TrafficColumns:
    """``Traffic`` by call."""

    read: Ints
    written: Ints
    copy_read: Ints
    copy_written: Ints

    def __getitem__(self, call: int) -> Traffic:
        return Traffic(
            int(self.read[call]),
            int(self.written[call]),
            int(self.copy_read[call]),
            int(self.copy_written[call]),
        )


@dataclass(frozen=True, slots=True)
class Footprints:
    """What each distinct work of a run touches. ``places`` says which tensor of the call lies in each of the blocks,
    counted through its operands and outputs; None: another storage, the same for all its calls, or a temporary.
    ``kinds``: equal for works that touch the same of blocks of the same sizes and allocate the same."""

    touches: tuple[Touches, ...]
    places: tuple[tuple[int | None, ...], ...]
    kinds: Ints


def footprints(columns: Columns, works: Works, l2_bytes: int) -> Footprints:
    """What the works of a run touch in a cache of this size."""
    sizes = np.where(columns.storage_on_device, columns.storage_bytes, 0).tolist()
    numbers: dict[object, int] = {}
    touches, places, kinds = [], [], []
    for call, work in zip(works.first.tolist(), works.distinct, strict=True):
        outputs = columns.outputs[columns.output_start[call] : columns.output_start[call + 1]]
        operands = columns.operands[columns.operand_start[call] : columns.operand_start[call + 1]]
        made = columns.tensor_storage[outputs].tolist()
        here = columns.tensor_storage[operands].tolist() + made
        found = touches_of(work, lambda storage: sizes[storage] if storage >= 0 else 0, l2_bytes)
        first = {storage: place for place, storage in reversed(list(enumerate(here)))}
        place = tuple(map(first.get, found.blocks))
        sizes_made = tuple(sizes[storage] if storage >= 0 else -1 for storage in made)
        kind = (found.passes, found.again, place, len(operands), sizes_made, work.temporaries, work.allocated)
        touches.append(found)
        places.append(place)
        kinds.append(numbers.setdefault(kind, len(numbers)))
    return Footprints(tuple(touches), tuple(places), np.array(kinds, dtype=np.int64))


def warm_traffic(
    columns: Columns, works: Works, prints: Footprints, memory: MemoryUse, l2_bytes: int
) -> TrafficColumns:
    """HBM traffic of each call in a step that was preceded by its like: what the step before left in L2 is there."""
    run = _Run(columns, works, prints, memory)
    begins, keys = _stretches(run, _SETTLED * most_held(l2_bytes))
    calls = len(run.calls)
    _, first, of = np.unique(keys, return_index=True, return_inverse=True)
    found = np.zeros((len(first), 4), dtype=np.int64)
    wanted = {calls + place: number for number, place in enumerate(first.tolist())}
    for start, end in _merged((begins[place - calls], place) for place in sorted(wanted)):
        cache = L2Cache(l2_bytes)
        for place in range(start, end + 1):
            traffic = run.do(place, cache)
            number = wanted.get(place)
            if number is not None:
                found[number] = traffic.read, traffic.written, traffic.copy_read, traffic.copy_written
    by_call = np.zeros((columns.calls, 4), dtype=np.int64)
    by_call[run.calls] = found[of]
    return TrafficColumns(*by_call[memory.stand_in].T)


def _merged(stretches: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Stretches by their ends in order, those that overlap made one."""
    merged: list[list[int]] = []
    for start, end in stretches:
        while merged and start <= merged[-1][1] + 1:
            start = min(start, merged.pop()[0])
        merged.append([start, end])
    return ((start, end) for start, end in merged)


#: Address and bytes of a block.
_Block = tuple[int, int]


class _Run:
    """Two steps, one after the other, of the calls that the allocator replayed: each call's blocks where they lie.
    Places are counted through both steps."""

    def __init__(self, columns: Columns, works: Works, prints: Footprints, memory: MemoryUse) -> None:
        self.calls: list[int] = memory.replayed.tolist()
        self._inside = memory.inside
        of = works.of[memory.replayed]
        self._works = [works.distinct[number] for number in of.tolist()]
        self._touches: list[Touches] = [prints.touches[number] for number in of.tolist()]
        self._places = [prints.places[number] for number in of.tolist()]
        self._kinds: list[int] = prints.kinds[of].tolist()
        tensors, _ = side_by_side(columns, memory.replayed)
        rows = columns.tensor_storage[tensors]
        counts = np.diff(columns.operand_start) + np.diff(columns.output_start)
        self._row_start: list[int] = np.concatenate(([0], np.cumsum(counts[memory.replayed]))).tolist()
        self._rows = _blocks(rows, columns, memory)
        made = np.flatnonzero((memory.born >= 0) & (memory.address >= 0))
        replayed = np.zeros(columns.calls, dtype=np.bool_)
        replayed[memory.replayed] = True
        made = made[replayed[memory.born[made]]]
        made = made[np.argsort(memory.born[made], kind="stable")]
        self._made = _blocks(made, columns, memory)
        behind = np.append(memory.replayed, columns.calls)
        self._made_start: list[int] = np.searchsorted(memory.born[made], behind).tolist()
        freed = columns.freed_storage
        # All others that stood before the run stand where they are.
        standing = np.unique(freed[(memory.born[freed] < 0) & (memory.address[freed] >= 0)])
        self._standing = _blocks(standing, columns, memory)
        self._other = {
            block: _blocks(np.array([block]), columns, memory)[0]
            for touches, places in zip(prints.touches, prints.places, strict=True)
            for block, place in zip(touches.blocks, places, strict=True)
            if place is None and block >= 0
        }

    def kind(self, place: int) -> int:
        """Equal for calls that touch the same of blocks of the same sizes."""
        return self._kinds[place % len(self.calls)]

    def touched(self, place: int) -> Sequence[float]:
        """Bytes of each block that the call touches."""
        return self._touches[place % len(self.calls)].touched

    def placed(self, place: int) -> list[_Block]:
        """The blocks that a call makes, its temporaries last; those that have to be there again when a step begins."""
        turn = place % len(self.calls)
        made = self._made[self._made_start[turn] : self._made_start[turn + 1]]
        if not turn:
            made = [*self._standing, *made]
        work = self._works[turn]
        if work.temporaries:
            made += _temporaries(work, self._inside.get(self.calls[turn], ()))
        return made

    def blocks(self, place: int, placed: Sequence[_Block]) -> list[_Block]:
        """The blocks that a call touches, some of which were ``placed`` by it."""
        turn = place % len(self.calls)
        touched = self._touches[turn].blocks
        if not touched:
            return []
        start = self._row_start[turn]
        temporaries = len(placed) - len(self._works[turn].temporaries)
        return [
            self._rows[start + at]
            if at is not None
            else self._other[block]
            if block >= 0
            else placed[temporaries + ~block]
            for block, at in zip(touched, self._places[turn], strict=True)
        ]

    def do(self, place: int, cache: L2Cache) -> Traffic:
        """Run a call through a cache, which may have been new some calls ago."""
        turn = place % len(self.calls)
        placed = self.placed(place)
        for address, nbytes in placed:
            cache.place(address, nbytes)
        blocks = self.blocks(place, placed)
        for address, nbytes in blocks:
            if not cache.holds(address, nbytes):
                cache.place(address, nbytes)
        # Blocks of one call may overlap where a record says that one was freed before its time.
        held = [address if cache.holds(address, nbytes) else None for address, nbytes in blocks]
        return cache.run(self._touches[turn], held, self.calls[turn])


def _blocks(storages: Ints, columns: Columns, memory: MemoryUse) -> list[_Block]:
    """Where storages lie; what has none lies nowhere."""
    return list(zip(memory.address[storages].tolist(), columns.storage_bytes[storages].tolist(), strict=True))


def _temporaries(work: Work, allocated: Sequence[int]) -> Iterator[_Block]:
    """Address and bytes of each temporary: from the allocator, or one behind the other in the library's workspace."""
    own = () if work.kind == "matmul" else allocated
    free = _WORKSPACE
    for place, nbytes in enumerate(work.scratch):
        size = max(1, nbytes)
        yield (own[place] if place < len(own) else free), size
        free += size
    if work.spilled:
        yield _LOCAL_MEMORY, work.spilled


def _stretches(run: _Run, settling_bytes: float) -> tuple[list[int], Hashes]:
    """For each place of the second step where the stretch begins that settles it, and a hash of that stretch: what it
    does to which blocks, as far as those were touched within it."""
    recent = _Recent(settling_bytes)
    starts: list[int] = []
    hashes: list[int] = []
    for place in range(2 * len(run.calls)):
        starts.append(recent.start())
        said: list[object] = [run.kind(place)]
        placed = run.placed(place)
        said += [recent.place(address, nbytes, place) for address, nbytes in placed]
        for (address, nbytes), touched in zip(run.blocks(place, placed), run.touched(place), strict=True):
            said.append(recent.touch(address, nbytes, touched, place))
        hashes.append(hash(tuple(said)) & 0xFFFFFFFFFFFFFFFF)
    every = _hashes(np.array(hashes, dtype=np.uint64), np.array(starts, dtype=np.int64))
    return starts[len(run.calls) :], every[len(run.calls) :]


def _hashes(values: Hashes, starts: Ints) -> Hashes:
    """A hash of the values from ``starts[i]`` to ``i``, for each i: polynomials modulo 2**64."""
    base = np.uint64(0xD1342543DE82EF95)
    inverse = np.uint64(pow(int(base), -1, 1 << 64))
    count = len(values)
    powers, inverses = np.full(count, base), np.full(count, inverse)
    powers[:1] = inverses[:1] = 1
    with np.errstate(over="ignore"):
        powers, inverses = np.cumprod(powers), np.cumprod(inverses)
        sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(values * powers)))
        hashes: Hashes = (sums[1:] - sums[starts]) * inverses[starts]
        return hashes * base + (np.arange(count) - starts).astype(np.uint64)


class _Recent:
    """Which blocks were touched last, back to where so many bytes were touched since."""

    def __init__(self, settling_bytes: float) -> None:
        self._settling = settling_bytes
        self._starts: list[int] = []
        # By address: where it ends, and when it was placed or touched last.
        self._blocks: dict[int, tuple[int, int]] = {}
        # The calls of the stretch with the blocks that they touch; of each block the last such call and the bytes of it
        # that were touched; and the sum of these by call, and in all.
        self._calls: deque[tuple[int, list[int]]] = deque()
        self._last: dict[int, tuple[int, float]] = {}
        self._bytes_of: dict[int, float] = {}
        self._bytes = 0.0
        self._start = 0

    def place(self, address: int, nbytes: int, now: int) -> object:
        """A block begins; says over which recent ones."""
        end = address + nbytes
        known = self._blocks.get(address)
        if known is not None and known[0] == end:
            self._blocks[address] = end, now
            return self._age(known[1], now)
        first = bisect_left(self._starts, address)
        if first and self._blocks[self._starts[first - 1]][0] > address:
            first -= 1
        last = bisect_left(self._starts, end)
        said: list[int] = []
        former = self._starts[first:last]
        del self._starts[first:last]
        for start in former:
            stop, when = self._blocks.pop(start)
            self._forget(start)
            age = self._age(when, now)
            if age >= 0:
                said += (start - address, stop - end, age)
            for low, high in ((start, address), (end, stop)):
                if low < high:
                    self._put(low, high, when)
        self._put(address, end, now)
        return tuple(said) if said else -1

    def _put(self, start: int, end: int, when: int) -> None:
        self._blocks[start] = end, when
        insort(self._starts, start)

    def _forget(self, start: int) -> None:
        """Its bytes are others' now and do not count twice."""
        known = self._last.pop(start, None)
        if known is not None:
            self._bytes_of[known[0]] -= known[1]
            self._bytes -= known[1]

    def touch(self, address: int, nbytes: int, touched: float, now: int) -> int:
        """So many bytes of a block are touched; says how long ago it was before, -1 for before the stretch."""
        known = self._blocks.get(address)
        if known is None or known[0] != address + nbytes:
            self.place(address, nbytes, now)
            age = -1
        else:
            age = self._age(known[1], now)
            self._blocks[address] = known[0], now
        before, counted = self._last.get(address, (now, 0.0))
        most = max(counted, touched)
        if not self._calls or self._calls[-1][0] != now:
            self._calls.append((now, []))
            self._bytes_of[now] = 0.0
        self._calls[-1][1].append(address)
        self._bytes_of[before] -= counted
        self._bytes_of[now] += most
        self._bytes += most - counted
        self._last[address] = now, most
        return age

    def _age(self, when: int, now: int) -> int:
        return now - when if when >= self._start else -1

    def start(self) -> int:
        """Where the stretch begins that settles what comes now."""
        calls, last = self._calls, self._last
        while calls and self._bytes - self._bytes_of[calls[0][0]] >= self._settling:
            call, addresses = calls.popleft()
            for address in addresses:
                if address in last and last[address][0] == call:
                    del last[address]
            self._bytes -= self._bytes_of.pop(call)
            self._start = call + 1
        return self._start
