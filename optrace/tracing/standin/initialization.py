# torch leaves these functions untyped:
# mypy: disable-error-code="no-untyped-call"
"""`torch.nn.init` without contents to fill.

Random initial values never matter to fake tensors, and filling them costs most of the time of building a large
model. While nobody records, the random fillers return at once. While a recorder is on they run, so that a step that
initializes weights is recorded; rejection sampling then takes its first sample. Where all contents are computed,
the fillers are torch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from optrace.tracing.standin.mode import StandInMode
from optrace.tracing.standin.patches import Patch

_RANDOM_FILLERS = (
    "uniform_",
    "normal_",
    "trunc_normal_",
    "xavier_uniform_",
    "xavier_normal_",
    "kaiming_uniform_",
    "kaiming_normal_",
    "orthogonal_",
    "sparse_",
)


def patches() -> list[Patch]:
    """A row for each random filler.

    The fillers ask the tensor for its mode: libraries that are imported during a trace keep them beyond it.
    """

    def unrecorded(mode: StandInMode) -> bool:
        return mode.watcher is None and all(m is mode for m in _get_current_dispatch_mode_stack())

    def filler(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def fill(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            mode = tensor.fake_mode if isinstance(tensor, FakeTensor) else None
            if not isinstance(mode, StandInMode) or mode.values.complete:
                return original(tensor, *args, **kwargs)
            if unrecorded(mode) and isinstance(tensor, FakeTensor):
                mode.values.forget(tensor)
                return tensor
            with mode.answers.expecting("zero"):
                return original(tensor, *args, **kwargs)

        return fill

    why = "initial values are not needed, and asking for them costs time or has no answer"
    return [Patch(torch.nn.init, name, filler(getattr(torch.nn.init, name)), why) for name in _RANDOM_FILLERS]
