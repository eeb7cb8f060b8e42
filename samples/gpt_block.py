"""A hand-written GPT block: norm, causal self-attention, norm, MLP, two residual adds.

    optrace samples/gpt_block.py --out graph.svg --dtype bf16
    optrace samples/gpt_block.py --out graph.svg --dtype bf16 --train --batch 2

**What the picture shows.** Two clusters, ``attn`` and ``mlp``; the residual edge runs past the second (the first
residual is the input, which no op made). The four matmuls and the attention kernel are bound by math; the
layer norms, the gelu and the residual adds between them by memory (only the first ops wait for the host: the
queue starts empty). Splitting and merging heads costs nothing: views, thin and quiet. Without
``--dtype bf16`` the matmuls run in fp32 on the plain units and take nearly the whole clock.
"""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, LENGTH = 1024, 16, 2048


class CausalSelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).contiguous().view(batch, length, width))


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = MLP(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


model = Block(WIDTH, HEADS)


def get_inputs(batch: int = 8) -> tuple[torch.Tensor]:
    return (torch.randn(batch, LENGTH, WIDTH),)
