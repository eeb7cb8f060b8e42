"""An interrupt may come between any two lines of the recorder: what it has recorded stays right, and it goes on."""

from __future__ import annotations

import gc
import sys
import time
from linecache import getline
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from optrace.graph import OpGraph
from optrace.tracing import encoding, identity, open_session, sources, tracer

#: Where the interrupt comes: all that runs a call or appends many.
_FILES = {module.__file__ for module in (encoding, identity, sources, tracer)} | {
    sys.modules[OpGraph.__module__].__file__
}
TURNS = 4
OPS = ["aten.add.Tensor", "aten.mul_.Tensor", "aten.slice.Tensor"]


class Interrupt:
    """Raises ``KeyboardInterrupt`` before line ``at`` of those that are run in the recorder's files; counts them."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.lines = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in _FILES or frame.f_code.co_name == "recording":
            return None
        # A signal is not handled between the end of a ``with`` block and its exit, where this line would come again.
        if event == "line" and not getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith(
            "with "
        ):
            self.lines += 1
            if self.lines == self.at:
                raise KeyboardInterrupt
        return self


def recorded(interrupt: Interrupt) -> tuple[OpGraph, int]:
    """The graph of a loop that goes on after an interrupt, and how often it was interrupted."""
    caught = 0
    x = torch.ones(4)
    with open_session("cpu", device="cpu") as session, session.recording():
        sys.settrace(interrupt)
        try:
            for turn in range(TURNS):
                try:
                    y = x + turn
                    y.mul_(2)
                    y[1:]
                except KeyboardInterrupt:
                    caught += 1
        finally:
            sys.settrace(None)
        del y
    return session.graph, caught


@pytest.fixture(autouse=True)
def _few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer, "_MANY", 5)
    monkeypatch.setattr(identity.Identities, "live", lambda _: iter(()))  # slow, and nothing on the CPU


def test_each_line_can_be_interrupted() -> None:
    whole = Interrupt(0)
    graph, _ = recorded(whole)
    assert [node.op for node in graph] == OPS * TURNS
    assert whole.lines > TURNS * 3 * 10
    for at in range(1, whole.lines, 17):
        graph, caught = recorded(Interrupt(at))
        assert caught == 1
        assert torch._C._is_torch_function_enabled()
        check(graph)


def check(graph: OpGraph) -> None:
    """All turns are there, but for the end of one; the tensors of a turn are of one storage, gone when the next has made
    its own, or the one after that where the result of the next was lost."""
    ops = [node.op for node in graph]
    missing = len(OPS) * TURNS - len(ops)
    assert 0 <= missing <= 3
    turns = "".join("+" if op == OPS[0] else "." for op in ops).split("+")[1:]
    assert sorted(turns, key=len)[missing > 0 :] == [".."] * (len(turns) - (missing > 0))
    freed = {storage: node.id for node in graph for storage in node.freed}
    made = [node for node in graph if node.op == OPS[0]]
    for node, following in zip(made, [*made[1:], None], strict=True):
        (y,) = node.outputs
        assert (y.shape, y.stride, y.storage_bytes) == ((4,), (1,), 16)
        end = len(graph) if following is None else following.id
        assert all(tensor.storage == y.storage for i in range(node.id + 1, end) for tensor in graph[i].inputs)
        assert end - 1 <= freed[y.storage] <= (end - 1 if following is None else end + 1)
    for node in graph:
        if node.op == OPS[2]:
            assert (node.outputs[0].shape, node.outputs[0].offset) == ((3,), 1)
        assert node.source.line is not None
        assert Path(node.source.line.file).name == Path(__file__).name


def test_a_clock_that_a_finalizer_reads_as_the_encoder_begins_is_marked_between_its_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, turns = torch.ones(4), 3 * tracer._MANY
    reads: list[int] = []

    def read(_phase: str, _: object) -> None:
        gc.set_threshold(0)
        reads.append(session.calls)
        time.perf_counter()

    class Batch(encoding._Batch):
        @property
        def add(self) -> Any:
            add = super().add
            gc.set_threshold(1)  # garbage is collected when the batch is to get its events
            return add

    monkeypatch.setattr(encoding, "_Batch", Batch)
    threshold = gc.get_threshold()
    with open_session("cpu", device="cpu") as session, session.recording():
        gc.set_threshold(0)
        gc.callbacks.append(read)
        try:
            for turn in range(turns):
                x + turn
        finally:
            gc.callbacks.remove(read)
            gc.set_threshold(*threshold)
    assert [node.args[1] for node in session.graph] == list(range(turns))
    assert reads
    assert [mark.call for mark in session.graph.marks] == reads


def test_a_look_at_the_graph_from_within_the_encoder_appends_nothing_twice() -> None:
    looks = 0

    def look(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal looks
        if frame.f_code.co_filename != encoding.__file__:
            return None
        if event == "line" and frame.f_code.co_name == "_storage":
            looks += 1
            sys.settrace(None)
            assert len(session.graph) > 0
            sys.settrace(look)
        return look

    x = torch.ones(4)
    with open_session("cpu", device="cpu") as session, session.recording():
        sys.settrace(look)
        try:
            for turn in range(TURNS):
                x + turn
        finally:
            sys.settrace(None)
    assert looks
    assert [node.args[1] for node in session.graph] == list(range(TURNS))
