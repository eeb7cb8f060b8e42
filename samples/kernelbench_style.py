"""A problem in the convention of the KernelBench set: ``Model``, ``get_inputs()``, ``get_init_inputs()``.

    optrace samples/kernelbench_style.py --out graph.svg --no-grad

**What the picture shows.** A hand-written Mish, ``x * tanh(log(1 + exp(x)))``, scaled by the norm of its rows:
six kernels in a row that each read a 256 MiB tensor, five of which write one too (and a seventh, tiny, that keeps
the norm from being zero). The six are memory-bound, and the L2 hardly helps, since a tensor is four times its
size. Fused, the rows would be read once and written once; a CUDA graph would save next to nothing.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, features: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, features) to (rows, features)."""
        y = x * torch.tanh(F.softplus(x))
        norm = y.norm(dim=1, keepdim=True).clamp(min=self.epsilon)
        return y / norm * self.weight


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(4096, 16384)]


def get_init_inputs() -> list[object]:
    return [16384, 1e-6]
