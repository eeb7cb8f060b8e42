"""A small soak; the whole one is ``python -m tests.bench.soak``."""

import sys

import pytest

from tests.bench.memory import bytes_a_call
from tests.bench.soak import (
    Held,
    calls_and_seconds,
    interrupted_after,
    interrupting_call,
    left_changed,
    traced,
)


@pytest.fixture(scope="module")
def whole() -> tuple[int, float]:
    return calls_and_seconds()


def test_traces_leave_nothing_behind():
    left_changed(traced)
    before = Held.now()
    for _ in range(3):
        assert left_changed(traced) == (False, [])
    after = Held.now()
    assert (after.tensors, after.files) == (before.tensors, before.files)


@pytest.mark.parametrize("part", [0, 0.3, 0.6, 0.99])
def test_a_trace_interrupted_in_a_call_leaves_torch_as_it_was(whole, part):
    calls, _ = whole
    assert left_changed(interrupting_call(int(part * calls))) == (True, [])


@pytest.mark.skipif(sys.platform != "linux", reason="a timer of Linux")
@pytest.mark.parametrize("part", [0.01, 0.15, 0.3, 0.4, 0.55, 0.65, 0.8])
def test_a_trace_interrupted_by_a_signal_leaves_torch_as_it_was(whole, part):
    _, seconds = whole
    assert left_changed(interrupted_after(part * seconds)) == (True, [])


@pytest.mark.parametrize(
    "part", [0.4, 0.5, 0.7]
)  # of the first backward pass, of the optimizer's step, of the second
def test_an_interrupt_leaves_no_tensor_alive(whole, part):
    calls, _ = whole
    before = Held.now().tensors
    assert left_changed(interrupting_call(int(part * calls))) == (True, [])
    assert Held.now().tensors == before


def test_a_call_takes_less_than_a_kilobyte_of_memory():
    assert bytes_a_call(4000) < 1000
