"""Which of the touched bytes cross HBM: an L2 of two partitions that replaces what was least recently used.

Read off an H200's counters (fills, reads, chains of copies over 8 to 80 MiB, and single dirty blocks behind streams):

* Each line has its home in one partition. SMs of the other one read it through a copy in their own, so what one SM reads
  of a line takes one place or two, what all SMs read takes two: 44 MiB read over and over by the same SMs stay, 28 MiB
  where all read all. A write goes home; a copy keeps its place: rings of 36 to 48 MiB that are read and written miss as
  those do that are read. Which side an SM is on changes from kernel to kernel: half of the lines change sides.
* What was touched longest ago goes first. Dirty lines are written back shortly before that, and stay readable.
* No more than 28.3 of 60 MiB are dirty: of a fill of 32 MiB 3.7 are written back at once, of 36 MiB 7.7, of 64 MiB 35.8,
  and what was written longest ago first. So a working set that fits is written back over and over although nothing of it is
  read again from HBM.
* Pages lie in memory as it happens, so some sets are crowded and others are not. Three groups of sets stand for that.

Residency is by address. The caching allocator hands the block just freed to the next tensor of its size, so
a temporary is overwritten in the cache and most of it never reaches HBM.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from optrace.cost.passes import passes_of
from optrace.cost.sectors import FETCH, SECTOR, sector_bytes
from optrace.cost.work import MATRIX_KINDS, Access, Operand, Pass, Work
from optrace.graph import TensorMeta
from optrace.graph.nouns import DTYPE_BYTES

#: A storage is followed in pieces: one a MiB, so that a stream finds its start thrown out and its end there.
PIECE = 1 << 20
MAX_PIECES = 32

#: Shares of the L2: what it holds at all, what was touched so recently that it may stay dirty, and what may be dirty at
#: all. On an H200 a dirty block was written back once 50 to 55 MiB had come in behind it, copies counted, and was gone
#: after 57 of 60; 28.3 MiB stayed dirty after fills of 32 to 80.
HELD_SHARE = 0.97
YOUNG_SHARE = 0.88
DIRTY_SHARE = 0.47

#: Groups of sets, a third each, by how crowded they are: standard deviations from the mean.
CROWDING = (-1.09, 0.0, 1.09)
#: The standard deviation of what lies in a set is this times the root of the mean, both scaled to the whole L2: pages
#: of 2 MiB of which each falls into a third of the sets.
PAGE_SPREAD = math.sqrt((2 << 20) * 2)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that crossed HBM; of these, what the copy engine moved."""

    read: int
    written: int
    copy_read: int = 0
    copy_written: int = 0


class _Part:
    """Half the lines of a piece in one group of sets, at home or as copies: bytes in the cache, and dirty ones.

    ``young_entries``, ``old_entries`` and ``dirty_entries`` count how often it stands in the queues of its ``_Sets``.
    """

    __slots__ = ("dirty", "dirty_entries", "old", "old_entries", "resident", "young_entries")

    def __init__(self) -> None:
        self.resident = 0.0
        self.dirty = 0.0
        self.old = False
        self.young_entries = 0
        self.old_entries = 0
        self.dirty_entries = 0


#: Home and copy of the one half, home and copy of the other.
_Parts = tuple[_Part, _Part, _Part, _Part]


class _Piece:
    """Part of a storage: its lines in each group of sets, none before it is touched; ``extent`` is the most that one pass
    touched of it."""

    __slots__ = ("extent", "groups", "number", "size")

    def __init__(self, size: float, number: int) -> None:
        self.size = size
        self.number = number
        self.extent = 0.0
        # Most pieces of large storages never are.
        self.groups: tuple[_Parts, ...] = ()

    def touched(self) -> None:
        """It has lines from now on."""
        if not self.groups:
            self.groups = tuple((_Part(), _Part(), _Part(), _Part()) for _ in CROWDING)


@dataclass(frozen=True, slots=True)
class _Block:
    """A storage in place: its range of addresses and its pieces."""

    start: int
    end: int
    pieces: list[_Piece]


#: How a piece is touched: read, read by SMs of both partitions, written.
_READ, _SHARED, _WRITE = range(3)

#: A touch as each group of sets sees it: the piece, half the bytes, half the extent and half the size; how; whether the
#: SMs are on the other side.
_Step = tuple[_Piece, float, float, float, int, int]

#: What happens to a part in a touch: it is written, read by SMs near its home, read at home to make a copy, or read as
#: that copy.
_WRITTEN, _NEAR, _FETCHED, _COPIED = range(4)

#: The parts that a read touches, in order (0 and 2 are homes, 1 and 3 their copies), by ``shared`` and side.
_READ_ORDER = {
    (False, 0): ((0, _NEAR), (2, _FETCHED), (3, _COPIED)),
    (False, 1): ((0, _FETCHED), (1, _COPIED), (2, _NEAR)),
    (True, 0): ((0, _NEAR), (0, _FETCHED), (1, _COPIED), (2, _NEAR), (2, _FETCHED), (3, _COPIED)),
}
_READ_ORDER[True, 1] = _READ_ORDER[True, 0]
_WRITE_ORDER = ((0, _WRITTEN), (2, _WRITTEN))

#: Entries of a queue before it is looked through for void ones.
_FEW_ENTRIES = 4096


class _Sets:
    """One group of sets: parts in the order in which they were touched, young ones apart from old ones, which are
    clean; and dirty ones in the order in which they were written. Sizes are those that the whole cache would have if all its
    sets were like these.

    A part that is touched again is entered again: of its entries in a queue only the last counts, and none once it
    has left for the other queue or for good.
    """

    __slots__ = (
        "_dirty",
        "_dirty_bytes",
        "_most_dirty",
        "_most_old",
        "_most_young",
        "_old",
        "_old_bytes",
        "_young",
        "_young_bytes",
        "dirty_limit",
        "limit",
        "young_limit",
    )

    def __init__(self, limit: float, young_limit: float, dirty_limit: float) -> None:
        self.limit = limit
        self.young_limit = young_limit
        self.dirty_limit = dirty_limit
        self._young: deque[_Part] = deque()
        self._old: deque[_Part] = deque()
        self._dirty: deque[_Part] = deque()
        self._young_bytes = self._old_bytes = self._dirty_bytes = 0.0
        self._most_young = self._most_old = self._most_dirty = _FEW_ENTRIES

    def drop(self, part: _Part) -> None:
        """Take a part out, unwritten: its lines are void or have passed to another."""
        if part.resident:
            self._dirty_bytes -= part.dirty
            if part.old:
                self._old_bytes -= part.resident
                part.old = False
            else:
                self._young_bytes -= part.resident
            part.resident = part.dirty = 0.0

    def inherit(self, part: _Part, share: float, former: _Part) -> None:
        """A part takes over a share of a former one's lines, and of the two ages the younger."""
        taken = share * former.resident
        if not taken:
            return
        if former.old and (part.old or not part.resident):
            if not part.old:
                part.old_entries += 1
                self._old.append(part)
                part.old = True
            self._old_bytes += taken
        else:
            if part.old or not part.resident:
                part.young_entries += 1
                self._young.append(part)
            if part.old:
                self._old_bytes -= part.resident
                self._young_bytes += part.resident
                part.old = False
            self._young_bytes += taken
        part.resident += taken
        if former.dirty:
            part.dirty += share * former.dirty
            self._dirty_bytes += share * former.dirty
            part.dirty_entries += 1
            self._dirty.append(part)

    def run(self, group: int, steps: Sequence[_Step], missed: list[float], evicted: list[float]) -> None:
        """Touch the ``group``-th parts of pieces one after the other: what comes in from HBM and what is written back
        in each step is added to ``missed`` and ``evicted``. The innermost loop of all pricing, so no call stands in it.
        """
        young, old, dirties = self._young, self._old, self._dirty
        young_bytes, old_bytes, dirty_bytes = self._young_bytes, self._old_bytes, self._dirty_bytes
        limit, young_limit, dirty_limit = self.limit, self.young_limit, self.dirty_limit
        absent = 0.0
        for number, (piece, half, extent, most, how, side) in enumerate(steps):
            parts = piece.groups[group]
            came_in, written = missed[number], evicted[number]
            for place, what in _WRITE_ORDER if how == _WRITE else _READ_ORDER[how == _SHARED, side]:
                part = parts[place]
                resident = part.resident
                if what == _COPIED:
                    incoming = absent
                else:
                    # What is there lies evenly over the extent.
                    incoming = half * (1.0 - (resident / extent if resident < extent else 1.0))
                    if most - resident < incoming:
                        incoming = most - resident
                    if what == _WRITTEN:
                        before = part.dirty
                        dirty = before + half * (1.0 - (before / extent if before < extent else 1.0))
                        part.dirty = dirty = min(most, dirty)
                        dirty_bytes += dirty - before
                    elif what == _NEAR:
                        came_in += incoming
                    else:
                        copied = parts[place + 1].resident
                        absent = half * (1.0 - (copied / extent if copied < extent else 1.0))
                        if most - copied < absent:
                            absent = most - copied
                        if not absent:
                            continue
                        # The copy is made from the line at home, which comes in first if it has to.
                        if absent < incoming:
                            incoming = absent
                        came_in += incoming
                if resident:
                    if part.old:
                        old_bytes -= resident
                        young_bytes += resident
                        part.old = False
                elif not incoming:
                    continue
                part.resident = resident + incoming
                young_bytes += incoming
                part.young_entries += 1
                young.append(part)
                aged = 0.0
                if what == _WRITTEN:
                    part.dirty_entries += 1
                    dirties.append(part)
                    # What was written longest ago is written back, and stays.
                    while dirty_bytes > dirty_limit:
                        first = dirties[0]
                        if first.dirty_entries > 1 or not first.dirty:
                            first.dirty_entries -= 1
                            dirties.popleft()
                            continue
                        excess = dirty_bytes - dirty_limit
                        if first.dirty > excess:
                            first.dirty -= excess
                            dirty_bytes = dirty_limit
                            aged += excess
                            break
                        dirties.popleft()
                        first.dirty_entries = 0
                        dirty_bytes -= first.dirty
                        aged += first.dirty
                        first.dirty = 0.0
                if young_bytes > young_limit:
                    # Parts beyond the youngest are written back and old.
                    while young_bytes > young_limit:
                        first = young[0]
                        if first.young_entries > 1 or first.old or not first.resident:
                            first.young_entries -= 1
                            young.popleft()
                            continue
                        if first is part:
                            break
                        young.popleft()
                        first.young_entries = 0
                        first.old = True
                        first.old_entries += 1
                        old.append(first)
                        young_bytes -= first.resident
                        old_bytes += first.resident
                        aged += first.dirty
                        dirty_bytes -= first.dirty
                        first.dirty = 0.0
                elif not incoming:
                    written += aged
                    continue
                excess = young_bytes + old_bytes - limit
                # The oldest lines go; where a single part is more than all others leave room for, its own.
                while excess > 0 and old:
                    first = old[0]
                    if first.old_entries > 1 or not first.old:
                        first.old_entries -= 1
                        old.popleft()
                    elif first.resident > excess:
                        first.resident -= excess
                        old_bytes -= excess
                        break
                    else:
                        old.popleft()
                        first.old_entries = 0
                        first.old = False
                        excess -= first.resident
                        old_bytes -= first.resident
                        first.resident = first.dirty = 0.0
                else:
                    if excess > 0:
                        flushed = part.dirty * excess / part.resident
                        part.dirty -= flushed
                        dirty_bytes -= flushed
                        part.resident -= excess
                        young_bytes -= excess
                        aged += flushed
                written += aged
            missed[number], evicted[number] = came_in, written
        self._young_bytes, self._old_bytes, self._dirty_bytes = young_bytes, old_bytes, dirty_bytes
        if len(young) > self._most_young or len(old) > self._most_old or len(dirties) > self._most_dirty:
            self._clear()

    def _clear(self) -> None:
        """Take void entries out of the queues."""
        for _ in range(len(self._young)):
            part = self._young.popleft()
            if part.young_entries > 1 or part.old or not part.resident:
                part.young_entries -= 1
            else:
                self._young.append(part)
        for _ in range(len(self._old)):
            part = self._old.popleft()
            if part.old_entries > 1 or not part.old:
                part.old_entries -= 1
            else:
                self._old.append(part)
        for _ in range(len(self._dirty)):
            part = self._dirty.popleft()
            if part.dirty_entries > 1 or not part.dirty:
                part.dirty_entries -= 1
            else:
                self._dirty.append(part)
        self._most_dirty = _FEW_ENTRIES + 2 * len(self._dirty)
        self._most_young = _FEW_ENTRIES + 2 * len(self._young)
        self._most_old = _FEW_ENTRIES + 2 * len(self._old)


#: The address of a place; how far into a pass a piece is touched.
_first = itemgetter(0)

#: A product's tile has about this many rows and columns: an operand that takes part in more multiply-adds an element is
#: read by several CTAs.
TILE = 128


class L2Cache:
    """The cache over a run: ``place`` a block when it is allocated, then ``run`` each call's touches."""

    def __init__(self, l2_bytes: int) -> None:
        self._sets = tuple(
            _Sets(
                *(_mean_load(share * l2_bytes, crowding) for share in (HELD_SHARE, YOUNG_SHARE, DIRTY_SHARE))
            )
            for crowding in CROWDING
        )
        # What lies in the cache by address, dead blocks too until they are overlaid: they share no byte.
        self._blocks: dict[int, _Block] = {}
        self._starts: list[int] = []

    def place(self, address: int, nbytes: int) -> None:
        """A block begins at ``address``: it takes over the lines of what lay there."""
        end = address + nbytes
        known = self._blocks.get(address)
        if known is not None and known.end == end:
            for piece in known.pieces:
                piece.extent = 0.0
            return
        first = bisect_left(self._starts, address)
        if first and self._blocks[self._starts[first - 1]].end > address:
            first -= 1
        last = bisect_left(self._starts, end)
        former = [self._blocks.pop(start) for start in self._starts[first:last]]
        del self._starts[first:last]
        self._put(address, end, former)
        for block in former:
            # What is left beside the newcomer stays in the cache.
            for low, high in ((block.start, address), (end, block.end)):
                if low < high:
                    self._put(low, high, (block,))
        for block in former:
            for piece in block.pieces:
                for sets, parts in zip(self._sets, piece.groups, strict=False):
                    for part in parts:
                        sets.drop(part)

    def holds(self, address: int, nbytes: int) -> bool:
        """Whether a block is in place: nothing of another range was laid over it."""
        block = self._blocks.get(address)
        return block is not None and block.end == address + nbytes

    def _put(self, start: int, end: int, former: Iterable[_Block]) -> None:
        size, count = pieces_of(end - start)
        block = _Block(start, end, [_Piece(size, place) for place in range(count)])
        self._blocks[start] = block
        insort(self._starts, start)
        for other in former:
            for old, new, share in _overlaps(other, block):
                if not old.groups:
                    continue
                new.touched()
                for sets, before, after in zip(self._sets, old.groups, new.groups, strict=True):
                    for one, two in zip(before, after, strict=True):
                        sets.inherit(two, share, one)

    def run(self, touches: Touches, addresses: Sequence[int | None], call: int = 0) -> Traffic:
        """Do a call's passes one after the other, each side by side from first to last byte of all that it touches.

        ``addresses`` holds where the blocks lie that ``touches`` numbers; None: another of them lies there, which stands for
        both. ``call`` is the call's number in the step:
        another call's blocks run on other SMs.
        """
        read = written = copy_read = copy_written = 0.0
        blocks = [[] if address is None else self._blocks[address].pieces for address in addresses]
        turn = call * 0x9E3779B1 >> 13
        for one in touches.passes if all(blocks) else _in_place(touches.passes, blocks):
            for _ in range(one.times):
                missed, evicted = self._pass(one, blocks, turn)
                read += missed
                written += evicted
                if one.is_copy:
                    copy_read += missed
                    copy_written += evicted
        return Traffic(round(read) + touches.again, round(written), round(copy_read), round(copy_written))

    def _pass(self, one: PassTouches, blocks: Sequence[list[_Piece]], turn: int) -> tuple[float, float]:
        missed, evicted = one.read_beyond, one.written_beyond
        if one.pieces:
            steps: list[_Step] = []
            for slot, number, nbytes, how in one.pieces:
                piece = blocks[slot][number]
                if nbytes > piece.extent:
                    piece.extent = nbytes
                if not piece.groups:
                    piece.touched()
                # Half the SMs are near a piece's home, on a side that changes with the call.
                steps.append((piece, nbytes / 2, piece.extent / 2, piece.size / 2, how, (turn ^ number) & 1))
            came_in, went = [0.0] * len(steps), [0.0] * len(steps)
            for group, sets in enumerate(self._sets):
                sets.run(group, steps, came_in, went)
            groups = len(self._sets)
            missed += sum(came_in) / groups
            evicted += sum(went) / groups
        return missed, evicted


def _in_place(passes: Iterable[PassTouches], blocks: Sequence[Sequence[_Piece]]) -> Iterator[PassTouches]:
    """Passes without the touches of blocks that have no pieces."""
    for one in passes:
        yield replace(one, pieces=tuple(touch for touch in one.pieces if blocks[touch[0]]))


#: A piece of a block that a pass touches: the block's place among those that the call touches, the piece's number, the
#: bytes of it, and how.
PieceTouch = tuple[int, int, float, int]


@dataclass(frozen=True, slots=True)
class PassTouches:
    """What a pass touches, in order; ``read_beyond`` and ``written_beyond`` are bytes besides that cross HBM whatever is
    in the cache."""

    pieces: tuple[PieceTouch, ...]
    read_beyond: float
    written_beyond: float
    is_copy: bool
    times: int


@dataclass(frozen=True, slots=True)
class Touches:
    """What a call touches, wherever it lies. ``blocks`` are storages, or temporaries as ``~place`` in ``Work.temporaries``,
    ``touched`` the bytes of each that a pass touches at most; ``again``: what a product reads again its rule knows to
    have left the L2."""

    blocks: tuple[int, ...]
    touched: tuple[float, ...]
    passes: tuple[PassTouches, ...]
    again: int


def touches_of(work: Work, sizes: Callable[[int], int], l2_bytes: int) -> Touches:
    """What ``work`` touches; ``sizes`` gives the bytes of a storage on the device, 0 for any other."""
    blocks: dict[int, int] = {}
    touched: dict[int, float] = {}
    passes = []
    for one in passes_of(work):
        found: list[tuple[float, PieceTouch]] = []
        for operand, how in (
            *((o, _SHARED if one.is_product and _uses(work, o) > TILE else _READ) for o in one.reads),
            *((o, _WRITE) for o in one.writes),
        ):
            if isinstance(operand, int):
                number, size = ~operand, max(1, work.temporaries[operand])
                first, span, moved = 0, size, size
            else:
                number, size = operand.tensor.storage, sizes(operand.tensor.storage)
                if not size or not operand.nbytes:
                    continue
                first, span, moved = _reach(operand, size, SECTOR if how == _WRITE else FETCH)
            slot = blocks.setdefault(number, len(blocks))
            touched[number] = max(touched.get(number, 0.0), float(moved))
            found += _spread(slot, size, first, span, moved, how)
        found.sort(key=_first)
        pieces, read, written = _without_the_stream([touch for _, touch in found], most_held(l2_bytes))
        read_again, written_again = _again(one, HELD_SHARE * l2_bytes)
        passes.append(
            PassTouches(
                pieces,
                read + read_again,
                written + written_again,
                one.is_copy,
                one.times,
            )
        )
    again = sum(access.nbytes for access in work.rereads) if work.kind in MATRIX_KINDS else 0
    return Touches(tuple(blocks), tuple(touched.values()), tuple(passes), again)


def pieces_of(nbytes: int) -> tuple[float, int]:
    """Size and number of the pieces in which a block is followed."""
    count = min(MAX_PIECES, -(-nbytes // PIECE))
    return nbytes / count, count


def most_held(l2_bytes: int) -> float:
    """Bytes that may be in the cache, in its least crowded sets: what was touched before so many others is gone."""
    return max(_mean_load(HELD_SHARE * l2_bytes, crowding) for crowding in CROWDING)


def _without_the_stream(
    touches: Sequence[PieceTouch], held: float
) -> tuple[tuple[PieceTouch, ...], float, float]:
    """The touches of a pass without the middle of one that is far more than the cache holds, and what that middle
    reads and writes: of what was in the cache before the pass nothing is left when it begins, and nothing of it when the
    pass ends, so all of it comes from HBM and goes there."""
    if sum(touch[2] for touch in touches) < 4 * held:
        return tuple(touches), 0.0, 0.0
    first: dict[tuple[int, int], int] = {}
    last: dict[tuple[int, int], int] = {}
    for place, (slot, number, _, _) in enumerate(touches):
        first.setdefault((slot, number), place)
        last[slot, number] = place
    begin = _filled(touches, range(len(touches)), held, last, max)
    end = _filled(touches, range(len(touches) - 1, -1, -1), held, first, min)
    read = written = 0.0
    dirty: set[tuple[int, int]] = set()
    for place in range(begin + 1, end):
        slot, number, nbytes, how = touches[place]
        if how != _WRITE:
            read += nbytes if first[slot, number] == place else 0.0
        elif (slot, number) not in dirty:
            dirty.add((slot, number))
            written += nbytes
    return (*touches[: begin + 1], *touches[max(end, begin + 1) :]), read, written


def _filled(
    touches: Sequence[PieceTouch],
    places: Iterable[int],
    held: float,
    other: Mapping[tuple[int, int], int],
    further: Callable[[int, int], int],
) -> int:
    """The place up to which touches fill the cache, and no piece is touched on both sides of it."""
    seen: set[tuple[int, int]] = set()
    filled, reach = 0.0, -1
    for place in places:
        slot, number, nbytes, _ = touches[place]
        piece = slot, number
        reach = place if reach < 0 else further(reach, other[piece])
        if piece not in seen:
            seen.add(piece)
            filled += nbytes
        if filled >= held and further(reach, place) == place:
            return place
    return reach


#: Places that a line read by SMs of either side takes on average: its home, and every other time a copy.
COPIES = 1.5
#: Bytes that an atomic in no order fetches where its sector is missing: 181 MB for 4.2 million of them spread over
#: 256 MiB, of which 80 % miss an L2 that holds a fifth of it.
ATOMIC_FETCH = 54


def _again(one: Pass, capacity: float) -> tuple[float, float]:
    """What touches in no order bring in and write back beyond one pass over what they touch."""
    reads, writes = (
        [access for access in operands if isinstance(access, Access)] for operands in (one.reads, one.writes)
    )
    streamed = COPIES * sum(access.nbytes for access in (*reads, *writes) if not access.scattered)
    changed = {access.tensor.id for access in writes if access.scattered}
    read = written = 0.0
    for access in reads:
        if access.scattered:
            atomic = access.tensor.id in changed
            held = access.tensor.nbytes * (1.0 if atomic else COPIES)
            missing = missing_share(held, access.scattered, streamed, capacity)
            fetched = access.scattered * (ATOMIC_FETCH if atomic else FETCH)
            read += max(0.0, missing * fetched - access.nbytes)
    for access in writes:
        if access.scattered and access.tensor.nbytes > capacity:
            # Changed so sparsely, a sector is written back before it is changed again.
            written += max(0, access.scattered * SECTOR - access.nbytes)
    return read, written


def missing_share(nbytes: float, touches: int, streamed: float, capacity: float) -> float:
    """The share of ``touches`` in no order of ``nbytes`` that find nothing in the cache, while ``streamed`` bytes pass
    through it.

    What was not touched for some time has left; in that time as much has come in as the cache holds (Che, Tung and Wang,
    Hierarchical Web Caching Systems, 2002): ``streamed / touches * t + nbytes * (1 - exp(-t / chunks)) = capacity``.
    """
    chunks = max(1.0, nbytes / FETCH)
    low, high = 0.0, 64 * chunks
    for _ in range(40):
        time = (low + high) / 2
        held = streamed / touches * time + nbytes * -math.expm1(-time / chunks)
        low, high = (time, high) if held < capacity else (low, time)
    return math.exp(-low / chunks)


def _reach(access: Access, size: int, unit: int) -> tuple[int, int, int]:
    """Where in its storage of ``size`` bytes an access begins, the bytes that it spans, and those that it moves, in
    units of so many bytes."""
    tensor = access.tensor
    first = tensor.offset * tensor.itemsize
    room = size - first
    moved = min(room, round(access.nbytes * sector_bytes(tensor, unit) / tensor.nbytes))
    return first, max(moved, min(_span(access), room)), moved


def _uses(work: Work, operand: Operand) -> float:
    """Multiply-adds of the product that an element of an operand takes part in."""
    nbytes = work.temporaries[operand] if isinstance(operand, int) else operand.tensor.nbytes
    size = DTYPE_BYTES.get(work.math_dtype, 4) if isinstance(operand, int) else operand.tensor.itemsize
    return (work.matmul_flops or 0) / 2 * size / max(1, nbytes)


def _mean_load(load: float, crowding: float) -> float:
    """What the cache as a whole holds when sets so crowded hold ``load``."""
    spread = PAGE_SPREAD * crowding
    return ((math.sqrt(spread * spread + 4 * load) - spread) / 2) ** 2


def _overlaps(former: _Block, block: _Block) -> Iterator[tuple[_Piece, _Piece, float]]:
    """Pieces of two blocks that share addresses, and the share of the former one's piece."""
    old_size, new_size = former.pieces[0].size, block.pieces[0].size
    low, high = max(former.start, block.start), min(former.end, block.end)
    if low >= high:
        return
    for place in range(int((low - former.start) / old_size), len(former.pieces)):
        start = former.start + place * old_size
        if start >= high:
            return
        end = start + old_size
        for number in range(max(0, int((start - block.start) / new_size)), len(block.pieces)):
            begin = block.start + number * new_size
            if begin >= end:
                break
            share = (min(end, begin + new_size) - max(start, begin)) / old_size
            if share > 0:
                yield former.pieces[place], block.pieces[number], share


def _spread(
    slot: int, size: int, first: int, span: int, nbytes: int, how: int
) -> list[tuple[float, PieceTouch]]:
    """``nbytes`` touched evenly over ``span`` bytes from ``first`` on of a block of ``size``, by its pieces; how far
    into the pass each is."""
    piece, count = pieces_of(size)
    if count == 1:
        return [(0.5, (slot, 0, float(nbytes), how))]
    found = []
    low, high = int(first / piece), min(count, math.ceil((first + span) / piece))
    for number in range(low, high):
        start = max(first, number * piece)
        inside = min(first + span, (number + 1) * piece) - start
        if inside > 0:
            share = inside / span
            found.append(((start - first) / span + share / 2, (slot, number, nbytes * share, how)))
    return found


def _span(access: Access) -> int:
    """Bytes from the first to behind the last one of a tensor."""
    tensor: TensorMeta = access.tensor
    steps = sum((n - 1) * abs(s) for n, s in zip(tensor.shape, tensor.stride, strict=True))
    return (1 + steps) * tensor.itemsize
