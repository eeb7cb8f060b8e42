"""What `torch.optim` has to believe to take the paths that it takes on a GPU."""

from __future__ import annotations

from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import optimizer
from torch.utils import _foreach_utils

from optrace.tracing.standin.patches import Patch


def patches() -> list[Patch]:
    """Optimizers and gradient clipping use foreach and fused kernels only for tensor types that they list."""
    why = "foreach and fused kernels are chosen by the exact type of the parameters"
    return [
        Patch(module, "_foreach_supported_types", [*module._foreach_supported_types, FakeTensor], why)
        for module in (optimizer, _foreach_utils)
    ]
