"""Attention in three passes: written out, with the fused op, with one projection for query, key and value.

    optrace samples/attention_passes.py:WrittenOut --no-grad --dtype bf16 -o written_out.json
    optrace samples/attention_passes.py:FusedAttention --no-grad --dtype bf16 -o fused.json
    optrace samples/attention_passes.py:OneProjection --no-grad --dtype bf16 -o one_projection.json
    optrace scoreboard written_out.json fused.json one_projection.json
    optrace diff written_out.json fused.json -o diff.svg

**What the scoreboard shows.** Launches fall with every pass. Traffic and peak memory fall with the first: scores of
512 x 512 a head are no longer written and read. The second saves launches only.

**What the picture shows.** The products, the scale, the softmax and the copies around them went; one fused op a layer came.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, LAYERS = 512, 8, 4


def heads(x: Tensor) -> Tensor:
    """[batch, length, width] to [batch, heads, length, width / heads]."""
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class Projections(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class ByHand(Projections):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.mT) * q.shape[-1] ** -0.5
        return scores.softmax(-1) @ v


class Joint(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(heads, self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = attention
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class WrittenOut(nn.Module):
    attention: type[nn.Module] = ByHand

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(self.attention()) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class FusedAttention(WrittenOut):
    attention = Projections


class OneProjection(WrittenOut):
    attention = Joint


def get_inputs(batch: int = 8) -> tuple[Tensor]:
    return (torch.randn(batch, 512, WIDTH),)
