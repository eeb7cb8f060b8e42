"""One block, five kernels: ``add(x, dropout(gelu(x @ w + b)))`` on a two-dimensional bf16 ``x``.

    optrace samples/toy_block.py --out graph.svg
    optrace samples/toy_block.py --out graph.svg -- --small
    optrace samples/toy_block.py --out graph.svg -- --elements 1e6 --elementwise 8

**What the picture shows.** A chain of five boxes (``x``, which the last one reads again, is an input and has no
box). At 16 million elements the matmul is bound by math and the four elementwise ops behind it by memory: each
writes a tensor that the next one reads back. With ``--small`` the same five boxes turn launch-bound: the GPU
waits for the host.

**By hand.** Count a kernel an op; two tensors (one read, one written) an elementwise op and three the matmul;
no cache, no math. A tensor of 16e6 bf16 elements has 32 MB:

    kernels   1 + 4                                   =   5
    bytes     (3 + 4 * 2) * 32 MB                     = 352 MB
    traffic   352 MB / 3.3 TB/s                       = 107 us
    tax       5 * (4 us dispatch + 6 us launch)       =  50 us

so of the two ceilings it is bandwidth. ``--dispatch-us 4 --launch-us 6 --bandwidth-tb 3.3`` prints these
figures under "lesson".

**Why optrace's own figures beside them differ.** ``tensor_bytes`` is 400 MB: dropout also writes a mask of one
byte an element (16 MB), and the residual add reads two tensors (32 MB more). ``hbm_bytes`` is what L2 lets through:
less for the elementwise ops, since a tensor that was just written is partly still there when the next op reads it;
more for the matmul, whose tiles read their operands again. And the matmul is not free math: 2 * 4000^3
FLOPs take 129 us at an H100's 989 TFLOP/s, more than the traffic of all five ops. The launches, on the other
hand, overlap with device time: only what the device waits for is on the clock.

``--elementwise N`` keeps the first N of bias add, gelu, dropout, residual add, and starts over after the fourth.
"""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn


class ToyBlock(nn.Module):
    """``width`` features; ``elementwise`` ops after the matmul."""

    def __init__(self, width: int, elementwise: int = 4) -> None:
        super().__init__()
        self.elementwise = elementwise
        self.w = nn.Parameter(torch.randn(width, width, dtype=torch.bfloat16) / math.sqrt(width))
        self.b = nn.Parameter(torch.zeros(width, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ops = (
            lambda h: h + self.b,
            F.gelu,
            lambda h: F.dropout(h, 0.1, self.training),
            lambda h: x + h,
        )
        h = x @ self.w
        for number in range(self.elementwise):
            h = ops[number % len(ops)](h)
        return h


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="add(x, dropout(gelu(x @ w + b)))")
    parser.add_argument(
        "--elements", type=float, default=16e6, help="elements of x and of w (16e6: 4000 x 4000)"
    )
    parser.add_argument("--elementwise", type=int, default=4, help="elementwise ops after the matmul")
    parser.add_argument("--small", action="store_true", help="64 x 64: the launch-bound regime")
    chosen = parser.parse_args()
    if chosen.small:
        chosen.elements = 64 * 64
    return chosen


def width() -> int:
    """Of the square ``x`` and ``w``."""
    return max(1, math.isqrt(round(options().elements)))


def model() -> ToyBlock:
    return ToyBlock(width(), options().elementwise)


def get_inputs() -> tuple[torch.Tensor]:
    return (torch.randn(width(), width(), dtype=torch.bfloat16),)
