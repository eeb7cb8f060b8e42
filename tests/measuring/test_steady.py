"""Which timings count on a host whose speed changes."""

import os

import pytest
import torch

from optrace.measuring import steady
from optrace.measuring.steady import (
    TOLERANCE,
    SteadyTimings,
    Timing,
    best_loop_us,
    calm,
    goes_backward,
    loop_turn_us,
    timed,
    timed_warm,
    undisturbed,
)


def test_timings_at_the_best_speed_count():
    good, slow = Timing((5.0,), 1.0 + TOLERANCE / 2), Timing((9.0,), 2.0)
    assert undisturbed([slow, good, Timing((4.0,), 1.0)]) == [good, Timing((4.0,), 1.0)]


def test_where_none_was_at_the_best_speed_known_the_least_disturbed_third_counts():
    timings = [Timing((float(n),), 2.0 + n / 10) for n in range(6)]
    assert undisturbed(timings, 1.0) == timings[:2]


def test_a_timing_carries_the_speed_of_the_host():
    timing = timed(lambda: (3.0,))
    assert timing.us == (3.0,)
    assert timing.loop_us > 0


@pytest.fixture
def moves(monkeypatch):
    """Processors gone to, of three."""
    found = []
    monkeypatch.setattr(steady, "_processors", lambda: (3, 5, 8))
    monkeypatch.setattr(steady, "_move_to", found.append)
    return found


def test_a_calm_host_stays_where_it_is(monkeypatch, moves):
    monkeypatch.setattr(steady, "reference_loop_us", lambda **_: 1.0 + TOLERANCE / 2)
    calm(1.0)
    assert moves == []


def test_a_disturbed_processor_is_left_for_one_that_is_not(monkeypatch, moves):
    turns = iter([2.0, 2.1, 1.9, 2.0, 1.8, 1.05])
    monkeypatch.setattr(steady, "reference_loop_us", lambda **_: next(turns))
    calm(1.0)
    assert moves == [3, 5, 8, 3, 5]


def test_a_host_that_stays_disturbed_is_waited_for_so_long_and_no_longer(monkeypatch, moves):
    clock = iter(range(100))
    monkeypatch.setattr(steady, "reference_loop_us", lambda **_: 2.0)
    monkeypatch.setattr(steady, "monotonic", lambda: float(next(clock)))
    calm(1.0, seconds=4.0)
    assert len(moves) == 4


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="no processors to choose from on this system"
)
def test_moving_leaves_all_processors_allowed():
    allowed = os.sched_getaffinity(0)
    for processor in steady._processors():
        steady._move_to(processor)
    assert os.sched_getaffinity(0) == allowed
    steady._move_to(10_000)  # there is none
    assert os.sched_getaffinity(0) == allowed


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_thread_of_backward_passes_is_looked_at_too(monkeypatch, mode):
    turns = iter([1.0, 3.0, 4.0, 2.0])
    monkeypatch.setattr(steady, "reference_loop_us", lambda **_: next(turns))
    with mode():
        assert (loop_turn_us("cpu"), loop_turn_us("cpu")) == (3.0, 4.0)


def test_each_of_the_two_threads_waits_for_a_calm_processor(monkeypatch, moves):
    turns = iter([1.0, 2.0, 1.0])  # here calm; there disturbed, and calm on another processor
    monkeypatch.setattr(steady, "reference_loop_us", lambda **_: next(turns))
    calm(1.0, device="cpu")
    assert moves == [3]


def test_the_best_speed_is_that_of_a_processor_of_the_quickest_quarter(monkeypatch, moves):
    turns = iter([1.5, 0.9, 2.0, 1.1])
    monkeypatch.setattr(steady, "_processors", lambda: (3, 5, 8, 9))
    monkeypatch.setattr(steady, "reference_loop_us", lambda **_: next(turns))
    assert best_loop_us() == 1.1
    assert moves == [3, 5, 8, 9]


def test_a_timing_stands_right_behind_an_untimed_turn_and_between_looks(monkeypatch):
    seen = []
    monkeypatch.setattr(steady, "calm", lambda *_: seen.append("calm"))
    monkeypatch.setattr(steady, "loop_turn_us", lambda *_: seen.append("look") or len(seen))

    def measure():
        seen.append("turn")
        return (float(len(seen)),)

    assert timed_warm(measure, 1.0, "cpu") == Timing((4.0,), 5)
    assert seen == ["calm", "look", "turn", "turn", "look"]


def test_every_other_step_of_a_program_is_timed_right_behind_one_that_is_not(monkeypatch):
    seen = []
    monkeypatch.setattr(steady, "calm", lambda *_: seen.append("calm"))
    monkeypatch.setattr(steady, "loop_turn_us", lambda *_: seen.append("look") or 1.0)
    timings = SteadyTimings(1.0, "cpu")
    for us in (9.0, 5.0, 8.0, 6.0, 7.0):
        with timings.step() as found:
            seen.append("step")
            found.append(us)
    assert timings.made == timings.undisturbed() == [Timing((5.0,), 1.0), Timing((6.0,), 1.0)]
    assert seen[:5] == ["calm", "look", "step", "step", "look"]


def test_the_speed_of_the_thread_of_backward_passes_counts_where_it_works():
    """On the CPU it is the caller's own."""
    assert goes_backward("cpu", lambda: sum(range(300_000))) == "cpu"
    assert goes_backward("cpu", lambda: None) is None
