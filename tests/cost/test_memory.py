"""The allocator model: segments, blocks, peaks."""

import pytest

from optrace.cost.memory import Allocator, memory_use
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
    [
        (1, 2 * MB),
        (MB, 2 * MB),
        (MB + 1, 20 * MB),
        (9 * MB, 20 * MB),
        (10 * MB, 10 * MB),
        (10 * MB + 1, 12 * MB),
    ],
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


@pytest.mark.parametrize(
    ("room", "nbytes", "taken"),
    [
        # Of a large block no rest of up to 1 MiB is split off; of a small one any.
        (20 * MB, 19 * MB, 20 * MB),
        (20 * MB, 19 * MB - 512, 19 * MB - 512),
        (MB, MB - 512, MB - 512),
    ],
)
def test_what_is_too_small_to_be_split_off_stays_with_the_block(room, nbytes, taken):
    allocator = Allocator()
    allocator.free(allocator.allocate(room))
    block = allocator.allocate(nbytes)
    assert allocator.block_bytes(block) == allocator.allocated == taken


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
    memory = memory_use(graph.columns(), [(), ()])
    assert (memory.base, memory.peak, memory.peak_call) == (4 * MB, 12 * MB, 1)
    assert memory.live_after.tolist() == [8 * MB, 8 * MB]


def test_temporaries_of_a_call_count_at_its_peak_and_are_gone_after_it(maker):
    x, y = T(1024, 1024), T(1024, 1024)
    maker("aten.relu.default", x, out=y)
    memory = memory_use(maker.graph.columns(), [(2 * MB, 3 * MB)])
    assert (memory.base, memory.peak) == (4 * MB, 4 * MB + 4 * MB + 2 * MB + 3 * MB)
    assert memory.live_after.tolist() == [8 * MB]


def test_what_was_freed_before_the_first_call_is_in_the_base_only(maker):
    x, y = T(1024, 1024), T(1024, 1024)
    maker("aten.relu.default", x, out=y)
    graph = maker.graph
    graph.add_free(graph.add_storage(graph.storages[0]), -1)
    memory = memory_use(graph.columns(), [()])
    assert (memory.base, memory.peak) == (8 * MB, 8 * MB)
