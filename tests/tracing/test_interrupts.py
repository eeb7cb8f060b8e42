# ruff: noqa: PT012  # in which line of the block the interrupt comes is seen in the record
"""Ctrl-C in a session: raised where an exception may pass, and never lost."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any

import pytest
import torch

import optrace
from optrace.tracing import Session, interrupts, open_session

_OF_TORCH: dict[str, Any] = {"__name__": "torch._in_between", "signal": signal, "sleep": sleep}
exec(
    "def interrupted():\n signal.raise_signal(signal.SIGINT)\n"
    "def waiting():\n signal.raise_signal(signal.SIGINT)\n sleep(60)\n",
    _OF_TORCH,
)
interrupted, waiting = _OF_TORCH["interrupted"], _OF_TORCH["waiting"]


@pytest.fixture(autouse=True)
def _default_handler() -> Iterator[None]:
    """That of Python, also in a background process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def session() -> Iterator[Session]:
    with open_session("fake") as session:
        yield session
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not interrupts.noted


@pytest.fixture
def _never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_TURN_S", 60)


@pytest.mark.usefixtures("_never_again")
def test_in_torch_it_is_raised_before_the_next_call(session: Session) -> None:
    with pytest.raises(KeyboardInterrupt), session.recording():
        x = torch.ones(2, device="cuda")
        interrupted()
        assert interrupts.noted
        assert x.device.type == "cuda"
        x + 1
    assert [node.op for node in session.graph] == ["aten.ones.default"]
    assert session.graph.info.incomplete == ("the run stopped with KeyboardInterrupt after 1 calls",)


@pytest.mark.usefixtures("_never_again")
def test_in_a_function_that_autograd_calls_it_is_raised_as_it_is(session: Session) -> None:
    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.exp()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            signal.raise_signal(signal.SIGINT)
            return grad * 2

    with pytest.raises(KeyboardInterrupt), session.recording():
        Exp.apply(torch.ones(2, device="cuda", requires_grad=True)).sum().backward()  # type: ignore[no-untyped-call]
    assert session.graph[len(session.graph) - 1].op == "aten.expand.default"


@pytest.mark.usefixtures("_never_again")
@pytest.mark.parametrize("where", ["the end of an object", "a collection of garbage"])
def test_where_python_would_lose_it_it_is_noted(session: Session, where: str) -> None:
    class Ends:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def told(phase: str, _info: dict[str, int]) -> None:
        if phase == "stop":
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), session.recording():
        x = torch.ones(2, device="cuda")
        if where == "the end of an object":
            Ends()
        else:
            gc.callbacks.append(told)
            try:
                gc.collect()
            finally:
                gc.callbacks.remove(told)
        assert interrupts.noted
        x + 1
    assert [node.op for node in session.graph] == ["aten.ones.default"]


@pytest.mark.usefixtures("_never_again")
def test_on_real_tensors_too() -> None:
    with open_session("cpu", device="cpu") as session, pytest.raises(KeyboardInterrupt), session.recording():
        x = torch.ones(2)
        interrupted()
        x + 1
    assert [node.op for node in session.graph] == ["aten.ones.default"]


def test_in_the_program_it_is_raised_at_once(session: Session) -> None:
    with session.recording(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert session.graph.info.incomplete == ()


def test_it_is_raised_where_the_program_calls_no_more_of_torch(session: Session) -> None:
    begin = monotonic()
    with pytest.raises(KeyboardInterrupt), session.recording():
        interrupted()
        threading.Event().wait(60)
    assert monotonic() - begin < 30


def test_where_torch_waits_it_is_raised_after_a_while(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "_PATIENCE_S", 0.05)
    begin = monotonic()
    with pytest.raises(KeyboardInterrupt), session.recording():
        waiting()
    assert monotonic() - begin < 30


@pytest.mark.usefixtures("_never_again")
def test_the_second_is_raised_at_once(session: Session) -> None:
    with session.recording():
        interrupted()
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert not interrupts.noted


@pytest.mark.usefixtures("_never_again")
def test_the_end_of_the_recording_raises_it(session: Session) -> None:
    recording = session.recording()
    recording.__enter__()
    interrupted()
    with pytest.raises(KeyboardInterrupt):
        recording.__exit__(None, None, None)


@pytest.mark.usefixtures("_never_again")
def test_the_library_raises_it_too() -> None:
    with pytest.raises(KeyboardInterrupt), optrace.trace(gpu="h100") as trace:
        x = torch.ones(2, device="cuda")
        interrupted()
        x + 1
    assert len(trace.graph) == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_program_stays() -> None:
    seen: list[int] = []

    def own(number: int, _frame: object) -> None:
        seen.append(number)

    before = signal.signal(signal.SIGINT, own)
    try:
        with open_session("fake") as session, session.recording():
            assert signal.getsignal(signal.SIGINT) is own
            interrupted()
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]


def test_a_handler_that_the_program_sets_stays() -> None:
    def own(_number: int, _frame: object) -> None: ...

    try:
        with open_session("fake"):
            signal.signal(signal.SIGINT, own)
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_session_in_another_thread_leaves_it_alone() -> None:
    seen: list[object] = []

    def trace() -> None:
        with open_session("fake"):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=trace)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
