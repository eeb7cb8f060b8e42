"""Which timings count on a host whose speed changes."""

import os
import time
from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import optrace
from optrace.measuring import steady
from optrace.measuring.steady import (
    TOLERANCE,
    SteadyTimings,
    Timing,
    calm,
    goes_backward,
    loop_turn_us,
    timed,
    timed_warm,
    undisturbed,
    undisturbed_loop_us,
)
from optrace.measuring.steps import Marked, Repeated
from optrace.tracing import open_session


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
    monkeypatch.setattr(steady, "_PATIENCE_S", 4.0)
    calm(1.0)
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


@pytest.mark.parametrize(
    ("processors", "moved"),
    [([3, 5, 8, 9], [3, 5, 8, 9] * 2), ([0], [0] * 8), (list(range(9)), list(range(9)))],
)
def test_the_best_speed_is_that_of_the_quickest_quarter_of_looks(monkeypatch, moves, processors, moved):
    turns = iter([1.5, 0.9, 2.0, 1.1, 1.6, 0.8, 1.7, 1.2, 3.0])
    monkeypatch.setattr(steady, "_processors", lambda: processors)
    monkeypatch.setattr(steady, "reference_loop_us", lambda **_: next(turns))
    assert undisturbed_loop_us() == 1.1
    assert moves == moved


def test_a_timing_stands_right_behind_an_untimed_turn_and_between_looks(monkeypatch):
    seen = []
    monkeypatch.setattr(steady, "calm", lambda *_: seen.append("calm"))
    monkeypatch.setattr(steady, "loop_turn_us", lambda *_: seen.append("look") or len(seen))

    def measure():
        seen.append("turn")
        return (float(len(seen)),)

    assert timed_warm(measure, 1.0, "cpu") == Timing((4.0,), 5)
    assert seen == ["calm", "look", "turn", "turn", "look"]


@pytest.fixture
def seen(monkeypatch):
    """What happens around steps, in order."""
    found = []
    monkeypatch.setattr(steady, "calm", lambda *_: found.append("calm"))
    monkeypatch.setattr(steady, "loop_turn_us", lambda *_: found.append("look") or float(len(found)))
    return found


def timing(timings, seen):
    @contextmanager
    def around():
        with timings.step() as us:
            yield
            us.append(float(len(seen)))

    return around


def test_a_step_that_can_be_repeated_is_timed_right_behind_an_untimed_one(seen):
    timings = SteadyTimings(1.0, None)
    assert Repeated(lambda: seen.append("step")).run(timing(timings, seen), 2, look=timings.look) == 2
    assert seen == ["calm", "look", "step", "step", "look"] * 2
    assert timings.made == [Timing((4.0,), 5.0), Timing((9.0,), 10.0)]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_each_step_that_a_program_marks_is_timed_behind_a_look(seen, steps):
    def program():
        for number in range(steps + 1):
            with optrace.step():
                seen.append(number)

    timings = SteadyTimings(1.0, None)
    with open_session("cpu", device="cpu") as session:
        marked = Marked(session, program, "program", None)
        seen.clear()
        assert marked.run(timing(timings, seen), 2 * steps, look=timings.look) == 2 * steps
    each = [what for number in range(1, steps + 1) for what in ("calm", "look", number, "look")]
    assert seen == [0, *each] * 2


def test_a_step_that_raises_is_no_timing(seen):
    timings = SteadyTimings(1.0, None)
    with pytest.raises(RuntimeError), timings.step():
        raise RuntimeError
    assert timings.made == []


def test_user_code_of_any_kind_may_stand_around_a_look():
    """A mode that hears every call hears none of ours; inside of a transform only this thread is looked at."""
    heard = []

    class Listening(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            heard.append(func)
            return func(*args, **(kwargs or {}))

    with Listening():
        assert loop_turn_us("cpu") > 0
    assert heard == []
    assert torch.func.grad(lambda x: loop_turn_us("cpu") * x)(torch.tensor(2.0)) > 0


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="no clocks of threads on this system")
def test_the_speed_of_the_thread_of_backward_passes_counts_where_it_works():
    """On the CPU it is the caller's own."""
    assert goes_backward("cpu", lambda: sum(range(300_000))) == "cpu"
    assert goes_backward("cpu", lambda: None) is None


def test_where_threads_have_no_clocks_every_step_may_go_backward(monkeypatch):
    monkeypatch.delattr(time, "pthread_getcpuclockid", raising=False)
    assert goes_backward("cpu", lambda: None) == "cpu"
