# ruff: noqa: ARG001, ARG002, ARG004  # signatures are those of torch
"""CUDA streams and events without a GPU.

Streams keep an identity, so that a recorder can say on which stream a call was issued. Nothing runs, so events have
always happened and take no time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from optrace.tracing.standin.device import BACKEND

_ids = itertools.count(1)


class Stream(torch.Stream):
    """`torch.cuda.Stream`."""

    number: int  # 0 is the default stream
    priority: int

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        stream: Stream = super().__new__(cls, device=torch.device(BACKEND, 0))
        stream.number = next(_ids)
        stream.priority = priority
        return stream

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # read-only in C too
        return torch.device("cuda", 0)

    @property
    def device_index(self) -> int:  # type: ignore[override]  # read-only in C too
        return 0

    @property
    def stream_id(self) -> int:  # type: ignore[override]  # read-only in C too
        return self.number

    @property
    def cuda_stream(self) -> int:
        return self.number

    @property
    def _as_parameter_(self) -> int:
        return self.number

    def wait_event(self, event: Any) -> None:
        """Everything has happened already."""

    def wait_stream(self, stream: Any) -> None:
        """Everything has happened already."""

    def record_event(self, event: Any = None) -> Any:
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Everything has happened already."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.number)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:0 cuda_stream={self.number:#x}>"

    def __enter__(self) -> Stream:
        _stack.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _stack.pop()


class Event:
    """`torch.cuda.Event`."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        self.enable_timing = enable_timing
        self.device = torch.device("cuda", 0)
        self.cuda_event = 0

    def record(self, stream: Any = None) -> None:
        """Nothing runs, so there is nothing to mark."""

    def wait(self, stream: Any = None) -> None:
        """Everything has happened already."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Everything has happened already."""

    def elapsed_time(self, end_event: Any) -> float:
        return 0.0


class StreamContext:
    """`torch.cuda.StreamContext`; a None stream changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            _stack.append(self.stream)

    def __exit__(self, *exc: object) -> None:
        if self.stream is not None:
            _stack.pop()


_stack: list[Stream] = []


def default_stream(device: Any = None) -> Stream:
    """The stream that calls are issued on unless another is entered."""
    stream = Stream()
    stream.number = 0
    return stream


def current_stream(device: Any = None) -> Stream:
    """The stream entered last."""
    return _stack[-1] if _stack else default_stream()


def current_number() -> int:
    """The number of the stream entered last; asked for each recorded call."""
    return _stack[-1].number if _stack else 0


def set_stream(stream: Stream | None) -> None:
    """Replace the current stream."""
    if stream is not None:
        _stack[-1:] = [stream]


def stream(stream: Stream | None) -> StreamContext:
    """A context in which calls are issued on `stream`."""
    return StreamContext(stream)


@contextmanager
def fresh() -> Iterator[None]:
    """Streams of one stand-in do not outlive it."""
    saved = _stack[:]
    _stack.clear()
    try:
        yield
    finally:
        _stack[:] = saved
