"""Forward, backward or optimizer: which part of a step a call belongs to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch.optim import optimizer as optim

from optrace.graph import Phase, Source

#: Library code whose calls belong to the optimizer whoever called it.
_OPTIMIZER_FILES = tuple(
    os.path.join("torch", *parts)
    for parts in (("optim", ""), ("nn", "utils", "clip_grad.py"), ("amp", "grad_scaler.py"))
)


class PhaseTracker:
    """Knows the phase of the call being dispatched."""

    def __init__(self) -> None:
        self.optimizers: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._steps = 0
        self._of_source: dict[int, tuple[bool, Source]] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Follow all optimizer steps inside the context."""
        before = optim.register_optimizer_step_pre_hook(self._enter)
        after = optim.register_optimizer_step_post_hook(self._leave)
        try:
            yield
        finally:
            before.remove()
            after.remove()
            self._steps = 0

    def phase(self, source: Source) -> Phase:
        """The phase of a call from ``source``."""
        if self._steps or self._from_optimizer(source):
            return "optimizer"
        if in_backward():
            return "backward"
        return "forward"

    def _from_optimizer(self, source: Source) -> bool:
        # By address: the finder hands out one object a stack.
        known = self._of_source.get(id(source))
        if known is None:
            found = any(part in frame.file for frame in source.frames for part in _OPTIMIZER_FILES)
            known = self._of_source[id(source)] = (found, source)
        return known[0]

    def _enter(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self.optimizers.add(optimizer)
        self._steps += 1

    def _leave(self, _optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self._steps = max(0, self._steps - 1)


def in_backward() -> bool:
    """Whether this thread runs a backward pass."""
    return torch._C._current_graph_task_id() != -1
