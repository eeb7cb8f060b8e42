"""What the L2 lets through. The cache holds 40 MiB; of what lay there, exp(-I / 40) is left after I MiB more."""

from math import exp

import pytest

from optrace.cost.l2 import USABLE_SHARE, L2Cache
from optrace.cost.work import Access, Work
from optrace.graph import TensorMeta

MIB = 1 << 20
CAPACITY = 40


def tensor(storage, mib, offset=0):
    return TensorMeta((mib * MIB,), (1,), "uint8", "cuda:0", storage, mib * MIB, offset * MIB, storage)


class Cache:
    def __init__(self):
        self.l2 = L2Cache(CAPACITY * MIB / USABLE_SHARE)

    def place(self, storage, address, mib):
        self.l2.place(storage, address * MIB, mib * MIB)

    def touch(self, reads=(), writes=()):
        """(MiB read, MiB written) through HBM."""
        accesses = [tuple(Access(t, t.nbytes) for t in tensors) for tensors in (reads, writes)]
        traffic = self.l2.run(Work(kernels=1, reads=accesses[0], writes=accesses[1]))
        return traffic.read / MIB, traffic.written / MIB


@pytest.fixture
def cache():
    return Cache()


def test_the_first_read_comes_from_hbm_and_the_next_does_not(cache):
    cache.place(0, 0, 1)
    assert cache.touch(reads=[tensor(0, 1)]) == (1, 0)
    assert cache.touch(reads=[tensor(0, 1)]) == (0, 0)


def test_what_is_left_after_other_lines_came_in(cache):
    cache.place(0, 0, 1)
    cache.place(1, 100, 20)
    cache.touch(reads=[tensor(0, 1)])
    cache.touch(reads=[tensor(1, 20)])
    read, _ = cache.touch(reads=[tensor(0, 1)])
    assert read == pytest.approx(1 - exp(-20 / CAPACITY), rel=1e-4)


def test_hits_throw_nothing_out(cache):
    cache.place(0, 0, 1)
    cache.place(1, 100, 1)
    cache.touch(reads=[tensor(0, 1)])
    cache.touch(reads=[tensor(1, 1)])
    for _ in range(1000):
        cache.touch(reads=[tensor(1, 1)])
    assert cache.touch(reads=[tensor(0, 1)])[0] == pytest.approx(1 - exp(-1 / CAPACITY), rel=1e-4)


def test_dirty_bytes_are_paid_by_the_call_that_throws_them_out(cache):
    cache.place(0, 0, 1)
    cache.place(1, 100, 20)
    assert cache.touch(writes=[tensor(0, 1)]) == (0, 0)
    _, written = cache.touch(reads=[tensor(1, 20)])
    assert written == pytest.approx(1 - exp(-20 / CAPACITY), rel=1e-4)


def test_a_temporary_over_a_freed_block_reuses_its_dirty_lines(cache):
    total = 0.0
    for number in range(100):
        cache.place(number, 0, 1)  # the same address every time
        total += cache.touch(writes=[tensor(number, 1)])[1]
    assert total < 1  # of 100 MiB written

    total = 0.0
    for number in range(100):
        cache.place(1000 + number, 500 + number, 1)  # a new address every time
        total += cache.touch(writes=[tensor(1000 + number, 1)])[1]
    assert 55 < total < 100


def test_a_stream_far_larger_than_the_cache_passes_through(cache):
    cache.place(0, 0, 4000)
    cache.place(1, 4000, 4000)
    cache.touch(reads=[tensor(0, 4000)], writes=[tensor(1, 4000)])
    read, written = cache.touch(reads=[tensor(0, 4000)], writes=[tensor(1, 4000)])
    assert read == pytest.approx(4000, rel=0.01)
    assert written == pytest.approx(4000, rel=0.01)


def test_a_view_finds_its_part_of_what_was_written(cache):
    cache.place(0, 0, 3)
    cache.touch(writes=[tensor(0, 3)])
    assert cache.touch(reads=[tensor(0, 1, offset=1)])[0] < 0.1


def test_only_part_of_a_block_is_taken_over_by_a_smaller_tensor(cache):
    cache.place(0, 0, 4)
    cache.touch(reads=[tensor(0, 4)])
    cache.place(1, 2, 1)
    assert cache.touch(reads=[tensor(1, 1)])[0] < 0.1  # its addresses were in the cache


def test_host_tensors_have_no_address(cache):
    assert cache.touch(reads=[tensor(7, 1)]) == (0, 0)
