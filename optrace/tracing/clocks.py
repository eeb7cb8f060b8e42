"""Clocks that the user's program reads around its work, and waits that it asks for: what its own timers measure.

The functions are replaced while a session is open, so that a program that is loaded in it gets them however it
imports them; one that imported a clock before is not heard.
"""

from __future__ import annotations

import sys
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

import torch

from optrace.graph import Frame
from optrace.tracing.sources import is_user_code, shortened

#: Hears of a clock or a wait: its kind and the user's line.
Listener = Callable[[str, Frame], None]

_CLOCKS: tuple[tuple[ModuleType, str], ...] = (
    (time, "time"),
    (time, "time_ns"),
    (time, "perf_counter"),
    (time, "perf_counter_ns"),
    (time, "monotonic"),
    (time, "monotonic_ns"),
    (timeit, "default_timer"),
)


@contextmanager
def heard(listener: Listener) -> Iterator[None]:
    """Tell ``listener`` of clocks and waits while the context is active."""
    replaced: list[tuple[Any, str, Any]] = []
    places: list[tuple[Any, str, str]] = [(module, name, "clock") for module, name in _CLOCKS]
    places += [(torch.cuda, "synchronize", "synchronize"), (torch.accelerator, "synchronize", "synchronize")]
    places += [(kind, "synchronize", "synchronize") for kind in (torch.cuda.Event, torch.cuda.Stream)]
    try:
        for owner, name, kind in places:
            original = getattr(owner, name)
            own = name in vars(owner)
            setattr(owner, name, _telling(original, kind, listener))
            replaced.append((owner, name, original if own else None))
        yield
    finally:
        for owner, name, original in reversed(replaced):
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def _telling(function: Callable[..., Any], kind: str, listener: Listener) -> Callable[..., Any]:
    def told(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        frame = sys._getframe(1)
        if _is_users(frame):
            code = frame.f_code
            listener(kind, Frame(shortened(code.co_filename), frame.f_lineno, code.co_qualname, True))
        return result

    return told


_USERS: dict[str, bool] = {}


def _is_users(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    known = _USERS.get(file)
    if known is None:
        known = _USERS[file] = is_user_code(file)
    return known
