"""Moving and casting modules: `.cuda()`, `.to()`, `.half()` keep each parameter's identity, as on a GPU.

On a real device `Module._apply` gives a parameter new bytes (`param.data = ...`). For fake parameters it swaps two
tensor objects instead, and torch refuses that where anybody holds a weak reference to one (a recorder that knows
tensors by identity does) or where a graph of an earlier call still refers to it. Neither matters here: whoever knew
the parameter knows the same object afterwards, and no values are computed that an old graph could get wrong.
"""

from __future__ import annotations

import torch

from optrace.tracing.standin.patches import Patch


def patches() -> list[Patch]:
    """The one name of torch that is replaced."""
    return [
        Patch(
            torch.utils, "swap_tensors", _swap, "weak references and old graphs must not stop a conversion"
        ),
    ]


def _swap(t1: torch.Tensor, t2: torch.Tensor) -> None:
    """Exchange everything but the identity of two tensor objects."""
    t1.__class__, t2.__class__ = t2.__class__, t1.__class__
    t1.__dict__, t2.__dict__ = t2.__dict__, t1.__dict__
    torch._C._swap_tensor_impl(t1, t2)
