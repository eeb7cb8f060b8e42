"""A problem in the convention of the KernelBench set: ``Model``, ``get_inputs()``, ``get_init_inputs()``.

    optrace samples/kernelbench_style.py --out graph.svg --no-grad

**What the picture shows.** A matmul whose output is scaled, clamped and summed over rows: the usual target
of such a problem. Everything after the matmul reads and writes the whole (1024, 4096) tensor again, three
times for work that fits into the matmul's epilogue; those boxes are memory-bound, and fusing them is the cure.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features_in: int, features_out: int, scale: float) -> None:
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, features_in) to (batch, 1)."""
        x = self.linear(x) * self.scale
        return torch.clamp(x, min=-2.0, max=2.0).sum(dim=1, keepdim=True)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(1024, 2048)]


def get_init_inputs() -> list[object]:
    return [2048, 4096, 0.5]
