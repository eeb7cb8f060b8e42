"""The calls of a program that a backend executes, and who watches them.

A watcher is met by each call, between the program and what executes the call. ``WatchingMode`` brings it there on
a real device. Inside a stand-in no mode of its own is needed: the stand-in's mode, which sees each call anyway,
calls the watcher (``StandInMode``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any, Protocol, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from optrace.tracing import interrupts
from optrace.tracing.facts import is_composite

F = TypeVar("F", bound=Callable[..., Any])


class Watcher(Protocol):
    """Who is told of each call."""

    def call(self, run: Callable[..., Any], func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Execute ``func`` by ``run(*args, **kwargs)`` and hand back its result."""


#: Watches inside the context.
Watching = Callable[[Watcher], AbstractContextManager[Any]]

#: Questions and marks that no backend executes.
_NAMESPACES_LEFT_OUT = frozenset({"prim", "profiler"})

LEFT_OUT, WHOLE, COMPOSITE = 0, 1, 2

# By address: hashing an overload runs Python. The overload is kept beside, so that the address stays its own.
_kinds: dict[int, tuple[int, Any]] = {}


def kind_of(func: Any) -> int:
    """``LEFT_OUT`` for what no backend executes, ``COMPOSITE`` for an op that a mode meets undecomposed under
    inference mode only, ``WHOLE`` for any other."""
    known = _kinds.get(id(func))
    if known is None:
        known = _kinds[id(func)] = (_look_at(func), func)
    return known[0]


def _look_at(func: Any) -> int:
    if not isinstance(func, torch._ops.OpOverload) or func.namespace in _NAMESPACES_LEFT_OUT:
        return LEFT_OUT
    return COMPOSITE if is_composite(func) else WHOLE


def never_compiled(function: F) -> F:
    """``function``, which is left alone by ``torch.compile`` with all that it calls."""
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    code: CodeType = function.__code__
    frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
    return function


class WatchingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its mode hooks untyped
    """Shows each call to ``watcher``. A composite op, which comes whole under inference mode, is shown in its
    parts."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._watcher = watcher

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not by wrapping ``__torch_dispatch__``, which imports the compiler and costs as much as all that happens
        here: see ``never_compiled``."""
        return False

    @never_compiled
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        kind = kind_of(func)
        if kind == LEFT_OUT:
            return func(*args, **kwargs)
        if interrupts.noted:
            interrupts.raise_noted()
        if kind == COMPOSITE and torch.is_inference_mode_enabled():
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return self._watcher.call(func, func, args, kwargs)
