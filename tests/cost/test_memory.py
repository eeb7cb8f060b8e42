"""The allocator model and what the L2 keeps, byte by byte."""

import pytest

from optrace.cost.l2 import PIECE, L2Cache
from optrace.cost.memory import Allocator, memory_use
from optrace.cost.work import Access, Work
from optrace.graph import TensorMeta
from tests.cost.calls import T

MB = 1 << 20


def test_small_requests_share_a_segment_and_round_to_512():
    allocator = Allocator()
    first, second = allocator.allocate(100), allocator.allocate(513)
    assert (first, second) == (0, 512)
    assert allocator.allocated == 512 + 1024
    assert allocator.reserved == 2 * MB


@pytest.mark.parametrize(
    ("nbytes", "segment"),
    [(1, 2 * MB), (MB, 2 * MB), (MB + 1, 20 * MB), (9 * MB, 20 * MB), (10 * MB, 10 * MB), (10 * MB + 1, 12 * MB)],
)
def test_segments_by_size(nbytes, segment):
    allocator = Allocator()
    allocator.allocate(nbytes)
    assert allocator.reserved == segment


def test_a_freed_block_is_handed_to_the_next_request_of_its_size():
    allocator = Allocator()
    kept = allocator.allocate(4 * MB)
    freed = allocator.allocate(4 * MB)
    allocator.free(freed)
    assert allocator.allocate(4 * MB) == freed != kept


def test_free_neighbours_merge():
    allocator = Allocator()
    blocks = [allocator.allocate(4 * MB) for _ in range(5)]
    assert allocator.reserved == 20 * MB
    for number in (1, 3, 2):
        allocator.free(blocks[number])
    assert allocator.allocate(12 * MB) == blocks[1]
    assert allocator.reserved == 20 * MB


def test_random_use_leaves_nothing():
    import random

    random.seed(0)
    allocator, live = Allocator(), []
    for _ in range(2000):
        if live and random.random() < 0.5:
            allocator.free(live.pop(random.randrange(len(live))))
        else:
            live.append(allocator.allocate(random.choice([64, 1000, 70_000, 3 * MB, 15 * MB])))
        assert len(set(live)) == len(live)
    for block in live:
        allocator.free(block)
    assert allocator.allocated == 0


def test_peak_of_a_run(maker):
    x, y, z = T(1024, 1024), T(1024, 1024), T(1024, 1024)
    maker("aten.relu.default", x, out=y)
    maker("aten.relu.default", y, out=z)
    graph = maker.graph
    graph.add_free(graph[0].outputs[0].storage, 1)
    memory = memory_use(graph)
    assert (memory.base, memory.peak, memory.peak_call) == (4 * MB, 12 * MB, 1)
    assert memory.live_after == [8 * MB, 8 * MB]


def meta(storage, nbytes, offset=0):
    return TensorMeta((nbytes,), (1,), "uint8", "cuda:0", storage, nbytes, offset, storage)


def touch(cache, *, reads=(), writes=(), addresses):
    work = Work(
        kernels=1,
        reads=tuple(Access(t, t.nbytes) for t in reads),
        writes=tuple(Access(t, t.nbytes) for t in writes),
    )
    traffic = cache.run(work, addresses)
    return traffic.read, traffic.written


def test_what_fits_is_read_once_and_a_temporary_never_leaves():
    cache, addresses = L2Cache(40 * PIECE), {0: 0, 1: 10 * PIECE}
    x, y = meta(0, 10 * PIECE), meta(1, 10 * PIECE)
    assert touch(cache, reads=[x], writes=[y], addresses=addresses) == (10 * PIECE, 0)
    assert touch(cache, reads=[x, y], addresses=addresses) == (0, 0)


def test_dirty_bytes_are_paid_when_they_are_evicted():
    cache, addresses = L2Cache(40 * PIECE), {0: 0, 1: 100 * PIECE}
    assert touch(cache, writes=[meta(0, 30 * PIECE)], addresses=addresses) == (0, 0)
    assert touch(cache, reads=[meta(1, 25 * PIECE)], addresses=addresses) == (25 * PIECE, 15 * PIECE)


def test_a_tensor_far_larger_than_the_cache_leaves_its_tail():
    cache, addresses = L2Cache(40 * PIECE), {0: 0}
    big = meta(0, 1000 * PIECE)
    assert touch(cache, writes=[big], addresses=addresses) == (0, 960 * PIECE)
    tail = TensorMeta((10 * PIECE,), (1,), "uint8", "cuda:0", 0, 1000 * PIECE, 990 * PIECE, 9)
    assert touch(cache, reads=[tail], addresses=addresses) == (0, 0)
    head = TensorMeta((10 * PIECE,), (1,), "uint8", "cuda:0", 0, 1000 * PIECE, 0, 8)
    assert touch(cache, reads=[head], addresses=addresses)[0] == 10 * PIECE


def test_a_new_tensor_over_a_freed_block_finds_its_lines():
    cache, addresses = L2Cache(40 * PIECE), {0: 0, 1: 0}
    touch(cache, writes=[meta(0, 8 * PIECE)], addresses=addresses)
    touch(cache, writes=[meta(1, 8 * PIECE)], addresses=addresses)
    filler = {2: 100 * PIECE}
    assert touch(cache, reads=[meta(2, 40 * PIECE)], addresses=filler) == (40 * PIECE, 8 * PIECE)
