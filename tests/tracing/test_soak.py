"""A small soak; the whole one is ``python -m tests.bench.soak``."""

import gc
import sys
from collections.abc import Iterator

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


@pytest.fixture
def _collections_are_not_told() -> Iterator[None]:
    """Other tests' tools listen for collections; outside of a session, an interrupt that comes there is lost."""
    before = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = before


@pytest.mark.usefixtures("_collections_are_not_told")
@pytest.mark.skipif(sys.platform != "linux", reason="a timer of Linux")
def test_a_trace_interrupted_by_a_signal_leaves_torch_as_it_was(whole):
    """At some seven moments; a trace may take less time than the one that they were measured on."""
    _, seconds = whole
    parts = (0.01, 0.15, 0.3, 0.4, 0.55, 0.65, 0.8)
    found = [left_changed(interrupted_after(part * seconds)) for part in parts]
    assert [changed for _, changed in found] == [[]] * len(parts)
    assert sum(interrupted for interrupted, _ in found) >= 2


@pytest.mark.parametrize(
    "part", [0.4, 0.5, 0.7]
)  # of the first backward pass, of the optimizer's step, of the second
def test_an_interrupt_leaves_no_tensor_alive(whole, part):
    calls, _ = whole
    before = Held.now().tensors
    assert left_changed(interrupting_call(int(part * calls))) == (True, [])
    assert Held.now().tensors <= before  # less where what tests before it left is only freed now


def test_a_call_takes_less_than_a_kilobyte_of_memory():
    assert bytes_a_call(4000) < 1000
