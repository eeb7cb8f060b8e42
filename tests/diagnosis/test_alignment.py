from __future__ import annotations

import random
import time

from optrace.diagnosis.alignment import align


def test_equal_items_that_stay_in_order_are_found() -> None:
    assert align("abcab", "abxcab") == [(0, 0), (1, 1), (2, 3), (3, 4), (4, 5)]
    assert align("axbxcx", "abc") == [(0, 0), (2, 1), (4, 2)]
    assert align("ab", "ba") in ([(0, 1)], [(1, 0)])
    assert align("", "abc") == align("abc", "xyz") == []


def test_an_op_that_came_in_each_turn_of_a_loop_leaves_the_others_in_place() -> None:
    turns = 50
    pairs = align("ab" * turns, "axb" * turns)
    assert pairs == [pair for n in range(turns) for pair in ((2 * n, 3 * n), (2 * n + 1, 3 * n + 2))]


def test_it_finds_nearly_all_of_a_longest_common_subsequence() -> None:
    """Random deletions from a sequence with many repeats: what is left of it is common to both."""
    draw = random.Random(0)
    before = [draw.randrange(12) for _ in range(600)]
    after = [item for item in before if draw.random() > 0.03]
    pairs = align(before, after)
    assert len(pairs) >= 0.97 * len(after)
    assert all(before[a] == after[b] for a, b in pairs)
    assert pairs == sorted(pairs)
    assert len({b for _, b in pairs}) == len(pairs)


def test_a_loop_of_equal_calls_is_no_quadratic_work() -> None:
    def seconds(length: int) -> float:
        one, other = ["a", "b"] * length, ["b", "a", "c"] * length
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            align(one, other)
            best = min(best, time.process_time() - start)
        return best

    assert seconds(16_000) < 10 * seconds(4_000)
