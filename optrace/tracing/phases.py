"""Forward, backward or optimizer: which part of a step a call belongs to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch.optim import optimizer as optim

from optrace.graph import Source

#: Library code whose calls belong to the optimizer whoever called it.
_OPTIMIZER_FILES = tuple(
    os.path.join("torch", *parts)
    for parts in (("optim", ""), ("nn", "utils", "clip_grad.py"), ("amp", "grad_scaler.py"))
)


class PhaseTracker:
    """Knows whether an optimizer is taking a step, and which have."""

    def __init__(self) -> None:
        self.optimizers: WeakSet[torch.optim.Optimizer] = WeakSet()
        #: How many optimizers are taking a step.
        self.steps = 0

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
            self.steps = 0

    def _enter(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self.optimizers.add(optimizer)
        self.steps += 1

    def _leave(self, _optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self.steps = max(0, self.steps - 1)


def from_optimizer(source: Source) -> bool:
    """Whether library code on the way belongs to an optimizer."""
    return any(part in frame.file for frame in source.frames for part in _OPTIMIZER_FILES)
