"""What the L2 lets through. The cache holds 40 MiB in sets that are all alike, 32 of them young, 32 dirty."""

import math

import pytest

from optrace.cost import l2 as module
from optrace.cost.l2 import L2Cache, missing_share, touches_of
from optrace.cost.work import Access, Pass, Work
from optrace.graph import TensorMeta

MIB = 1 << 20
CAPACITY = 40
YOUNG = DIRTY = 32


def tensor(storage, mib, offset=0, shape=None, stride=(1,)):
    return TensorMeta(
        shape or (mib * MIB,), stride, "uint8", "cuda:0", storage, mib * MIB, offset * MIB, storage
    )


class Cache:
    def __init__(self):
        self.l2 = L2Cache(CAPACITY * MIB)
        self.blocks = {}

    def place(self, storage, address, mib):
        self.blocks[storage] = address * MIB, mib * MIB
        self.l2.place(address * MIB, mib * MIB)

    def traffic(self, work, scratch=(), call=0):
        """Of a call whose temporaries were placed under the numbers ``scratch``."""
        touches = touches_of(work, lambda storage: self.blocks.get(storage, (0, 0))[1], CAPACITY * MIB)
        numbers = [scratch[~block] if block < 0 else block for block in touches.blocks]
        return self.l2.run(touches, [self.blocks[number][0] for number in numbers], call)

    def run(self, work, scratch=(), call=0):
        traffic = self.traffic(work, scratch, call)
        return traffic.read / MIB, traffic.written / MIB

    def touch(self, reads=(), writes=(), call=0):
        """(MiB read, MiB written) through HBM."""
        accesses = [tuple(Access(t, t.nbytes) for t in tensors) for tensors in (reads, writes)]
        return self.run(Work(kernels=1, reads=accesses[0], writes=accesses[1]), call=call)


@pytest.fixture
def cache(monkeypatch):
    monkeypatch.setattr(module, "HELD_SHARE", 1.0)
    monkeypatch.setattr(module, "YOUNG_SHARE", YOUNG / CAPACITY)
    monkeypatch.setattr(module, "DIRTY_SHARE", DIRTY / CAPACITY)
    monkeypatch.setattr(module, "PAGE_SPREAD", 0.0)
    return Cache()


def test_the_first_read_comes_from_hbm_and_the_next_does_not(cache):
    cache.place(0, 0, 1)
    assert cache.touch(reads=[tensor(0, 1)]) == (1, 0)
    assert cache.touch(reads=[tensor(0, 1)]) == (0, 0)


def stream(cache, mib):
    """Read so many MiB that were never seen before; half of their lines come with a copy."""
    cache.place(99, 1000, 500)
    cache.run(Work(kernels=1, reads=(Access(tensor(99, mib), mib * MIB),)))


@pytest.mark.parametrize(("streamed", "left"), [(24, 1), (30, 0)])
def test_what_was_touched_longest_ago_goes_first(cache, streamed, left):
    """A MiB and its half of copies stay while 1.5 MiB come in for each MiB of the stream: 1.5 + 1.5 * 24 < 40, but
    1.5 * 30 > 40."""
    cache.place(0, 0, 1)
    cache.touch(reads=[tensor(0, 1)])
    stream(cache, streamed)
    assert cache.touch(reads=[tensor(0, 1)])[0] == 1 - left


def test_a_touch_makes_young(cache):
    cache.place(0, 0, 1)
    for _ in range(10):
        cache.touch(reads=[tensor(0, 1)])
        stream(cache, 20)
    assert cache.touch(reads=[tensor(0, 1)]) == (0, 0)


@pytest.mark.parametrize(("streamed", "written"), [(20, 0), (22, 1)])
def test_dirty_bytes_are_written_back_once_they_are_old(cache, streamed, written):
    """Before they go: 1 + 1.5 * 20 < 32 < 1 + 1.5 * 22 < 40."""
    cache.place(0, 0, 1)
    cache.place(99, 1000, 500)
    assert cache.touch(writes=[tensor(0, 1)]) == (0, 0)
    assert cache.touch(reads=[tensor(99, streamed)])[1] == written
    assert cache.touch(reads=[tensor(0, 1)])[0] == 0


@pytest.mark.parametrize(("filled", "first", "again"), [(16, 0, 0), (20, 20 - 16, 20)])
def test_only_so_much_may_be_dirty(cache, monkeypatch, filled, first, again):
    """16 MiB here. Of 20 what was written first is written back at once, and all of it in the next round, although the cache
    holds it: what comes next was always written back before."""
    monkeypatch.setattr(module, "DIRTY_SHARE", 16 / CAPACITY)
    cache = Cache()
    cache.place(0, 0, filled)
    assert cache.touch(writes=[tensor(0, filled)])[1] == pytest.approx(first)
    assert cache.touch(writes=[tensor(0, filled)])[1] == pytest.approx(again)
    assert cache.touch(reads=[tensor(0, filled)])[0] == 0


@pytest.mark.parametrize(("mib", "missed"), [(26, 0), (28, 28)])
def test_a_write_leaves_the_copy_in_its_place(cache, mib, missed):
    """A ring that is read and written takes as much as one that is read: 1.5 * 26 < 40 < 1.5 * 28."""
    cache.place(0, 0, mib)
    ring = tensor(0, mib)
    cache.touch(reads=[ring], writes=[ring])
    assert cache.touch(reads=[ring], writes=[ring])[0] == missed


def test_what_kernels_spill_lies_in_the_same_place(cache):
    """4 MiB of local memory beside a result of 1, both only written: 5 MiB become dirty, and the next such kernel writes over
    them."""
    cache.place(0, 0, 1)
    cache.place(-1, 1000, 4)
    result = Access(tensor(0, 1), MIB)
    work = Work(kernels=1, writes=(result,), kind="matmul", spilled=4 * MIB)
    assert [cache.run(work, (-1,)) for _ in range(3)] == [(0, 0)] * 3
    cache.place(99, 1000 + 100, 500)
    assert cache.touch(reads=[tensor(99, 60)])[1] == 1 + 4


def test_what_all_sms_read_takes_two_places(cache):
    """A product's operand of 24 MiB is read by both partitions: 2 * 24 > 40. One that a tile uses alone is not."""
    operand = tensor(0, 24)
    for uses, again in ((128, 0), (129, 24)):
        cache = Cache()
        cache.place(0, 0, 24)
        product = Work(
            kernels=1,
            reads=(Access(operand, operand.nbytes),),
            kind="matmul",
            matmul_flops=2 * uses * operand.numel,
        )
        cache.run(product)
        assert cache.run(product)[0] == again


def test_a_temporary_over_a_freed_block_reuses_its_dirty_lines(cache):
    total = 0.0
    for number in range(100):
        cache.place(number, 0, 1)  # the same address every time
        total += cache.touch(writes=[tensor(number, 1)])[1]
    assert total == 0  # of 100 MiB written

    for number in range(100):
        cache.place(1000 + number, 500 + number, 1)  # a new address every time
        total += cache.touch(writes=[tensor(1000 + number, 1)])[1]
    assert total == 1 + 100 - DIRTY  # the first temporary, and all but the youngest of these


def test_a_stream_far_larger_than_the_cache_passes_through(cache):
    cache.place(0, 0, 4000)
    cache.place(1, 4000, 4000)
    cache.touch(reads=[tensor(0, 4000)], writes=[tensor(1, 4000)])
    read, written = cache.touch(reads=[tensor(0, 4000)], writes=[tensor(1, 4000)])
    assert read == pytest.approx(4000, rel=0.01)
    assert written == pytest.approx(4000, rel=0.02)


def test_another_kernels_blocks_run_on_other_sms(cache):
    """Half of the lines change sides from call 0 to call 1, whose copies come from home, not from HBM."""
    cache.place(0, 0, 18)
    assert [cache.touch(reads=[tensor(0, 18)], call=call)[0] for call in (0, 0, 1, 1)] == [18, 0, 0, 0]


def test_a_view_finds_its_part_of_what_was_written(cache):
    cache.place(0, 0, 3)
    cache.touch(writes=[tensor(0, 3)])
    assert cache.touch(reads=[tensor(0, 1, offset=1)])[0] == 0


def test_only_part_of_a_block_is_taken_over_by_a_smaller_tensor(cache):
    cache.place(0, 0, 4)
    cache.touch(reads=[tensor(0, 4)])
    cache.place(1, 2, 1)
    assert cache.touch(reads=[tensor(1, 1)])[0] == 0  # its addresses were in the cache


def test_a_strided_read_moves_whole_sectors(cache):
    """Every eighth byte of 4 MiB: all of its sectors. Every 64th: they come in two at a time; every 128th, half of them."""
    for step, read in ((8, 4), (64, 4), (128, 2)):
        cache = Cache()
        cache.place(0, 0, 4)
        apart = tensor(0, 4, shape=(4 * MIB // step,), stride=(step,))
        assert cache.touch(reads=[apart])[0] == pytest.approx(read, abs=1e-4)


def test_passes_run_one_after_the_other(cache):
    """A second pass over 16 MiB finds what the first one read; over 60 MiB it does not."""
    for mib, read in ((16, 16), (60, 120)):
        cache = Cache()
        cache.place(0, 0, mib)
        whole = Access(tensor(0, mib), mib * MIB)
        assert cache.run(Work(kernels=2, passes=(Pass((whole,), times=2),)))[0] == pytest.approx(read)


def test_a_copy_in_another_layout_is_found_by_the_kernel_that_reads_it(cache):
    cache.place(0, 0, 8)
    cache.place(-1, 100, 8)
    cache.place(1, 200, 8)
    operands = [Access(tensor(number, 8), 8 * MIB) for number in (0, 1)]
    work = Work(kernels=2, reads=(operands[0],), writes=(operands[1],), scratch=(8 * MIB,))
    assert cache.run(work, (-1,)) == (8, 0)


def test_what_the_copy_engine_moves_is_told_apart(cache):
    cache.place(0, 0, 1)
    cache.place(1, 100, 1)
    source, result = (Access(tensor(number, 1), MIB) for number in (0, 1))
    work = Work(
        kernels=1, memcpys=1, passes=(Pass((source,), (result,), is_copy=True), Pass((result,), (result,)))
    )
    traffic = cache.traffic(work)
    assert (traffic.read, traffic.copy_read) == (MIB, MIB)


def test_reads_in_no_order_fetch_two_sectors_each(cache):
    """80 MiB take 1.5 x 80 = 120 of 40: a third of the touches find their bytes. 2 MiB fit."""
    for mib, read in ((80, 10 * 64 * (1 - 40 / 120)), (2, 2)):
        cache = Cache()
        cache.place(0, 0, mib)
        part = Access(tensor(0, mib), mib * MIB, scattered=10 * MIB)
        assert cache.run(Work(kernels=1, reads=(part,)))[0] == pytest.approx(read)


def test_atomics_in_no_order_write_a_sector_each(cache):
    """80 MiB at home only: half of the touches fetch 54 bytes, each writes a sector of 32. 2 MiB fit."""
    for mib, read, written in ((80, 10 * 54 / 2, 10 * 32), (2, 2, 0)):
        cache = Cache()
        cache.place(0, 0, mib)
        part = Access(tensor(0, mib), mib * MIB, scattered=10 * MIB)
        moved = cache.run(Work(kernels=1, passes=(Pass((part,), (part,)),)))
        # Of what the touches leave dirty the cache keeps up to 40 MiB.
        assert moved[0] == pytest.approx(read)
        assert written - 40 <= moved[1] <= written


def test_the_share_that_misses_is_what_does_not_fit():
    """100 of which 25 fit: three quarters miss. Where as much streams by as fits while each chunk of 64 bytes is touched once,
    t = chunks solves 2 x t / chunks + 100 x (1 - exp(-t / chunks)) = 2 + 63.2: exp(-1) miss."""
    assert missing_share(100.0, 50, 0.0, 25.0) == pytest.approx(0.75)
    chunks = 100 / 64
    capacity = 2 + 100 * (1 - math.exp(-1))
    assert missing_share(100.0, 50, 50 * 2 / chunks, capacity) == pytest.approx(math.exp(-1))


def test_crowded_sets_overflow_first():
    """Pages as on a GPU: 20 MiB with their half of copies, 30, are less than the 0.97 * 40 that fit, but not in the
    third of the sets that hold x + 1.09 * 2 * sqrt(x) = 38.8, which is 27.4."""
    cache = Cache()
    cache.place(0, 0, 20)
    again = [cache.touch(reads=[tensor(0, 20)])[0] for _ in range(3)]
    assert again == pytest.approx([20, 20 / 3, 20 / 3], rel=1e-4)


def test_of_blocks_that_overlap_one_stands_for_both(cache):
    """A record may say that a tensor was freed before the call that reads it."""
    cache.place(0, 0, 2)
    touches = touches_of(
        Work(kernels=1, reads=tuple(Access(tensor(number, 2), 2 * MIB) for number in (0, 1))),
        lambda storage: 2 * MIB,
        CAPACITY * MIB,
    )
    assert cache.l2.run(touches, [0, None]).read == 2 * MIB


def test_host_tensors_have_no_address(cache):
    assert cache.touch(reads=[tensor(7, 1)]) == (0, 0)


@pytest.mark.parametrize("in_place", [False, True])
def test_the_middle_of_a_stream_is_counted_without_being_followed(monkeypatch, in_place):
    """A pass over 2 x 900 MiB between two over 20 MiB: what it moves, what was there before it and what it leaves."""
    found = []
    for held in (module.most_held, lambda l2_bytes: float("inf")):
        monkeypatch.setattr(module, "most_held", held)
        cache = Cache()
        for number, mib in enumerate((20, 900, 900)):
            cache.place(number, 1000 * number, mib)
        cache.touch(writes=[tensor(0, 20)])
        target = tensor(1 if in_place else 2, 900)
        large = cache.touch(reads=[tensor(1, 900)], writes=[target], call=1)
        found.append((large, cache.touch(reads=[tensor(0, 20), target], call=2)))
    assert found[0] == found[1]
    assert found[0][0] == pytest.approx((900, 900), rel=0.05)
