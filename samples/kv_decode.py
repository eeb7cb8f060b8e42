"""Decoding one token at a time with a KV cache: what a language model does most of its life.

    optrace samples/kv_decode.py --out graph.svg
    optrace samples/kv_decode.py --out graph.svg --steps 4

A decoder of 8 layers, batch 1, 512 tokens in the cache. One ``optrace.step`` is one token.

**What the picture shows.** The same cluster eight times. Every matmul multiplies one row: its time is that of
reading the weights, and that is shorter than launching the kernel. So the step is launch-bound, and its launches
and tax are launches and tax **a token**, each paid again for the next one: ``--steps 4`` prints them as "a step".
Writing the new key and value into the cache is an in-place copy of one row; the attention after it depends
on that copy, and not on those of other layers.
"""

import torch
import torch.nn.functional as F
from torch import nn

import optrace

WIDTH, HEADS, LAYERS, CONTEXT, VOCABULARY = 1024, 16, 8, 1024, 32000
PROMPT, TOKENS = 512, 8


class Attention(nn.Module):
    """Self-attention of one new token over the tokens in its cache."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.register_buffer("keys", torch.zeros(1, HEADS, CONTEXT, WIDTH // HEADS))
        self.register_buffer("values", torch.zeros(1, HEADS, CONTEXT, WIDTH // HEADS))

    def forward(self, x: torch.Tensor, position: int) -> torch.Tensor:
        q, k, v = self.qkv(x).view(1, 1, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        self.keys[:, :, position : position + 1] = k
        self.values[:, :, position : position + 1] = v
        y = F.scaled_dot_product_attention(
            q, self.keys[:, :, : position + 1], self.values[:, :, : position + 1]
        )
        return self.out(y.transpose(1, 2).reshape(1, 1, WIDTH))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, position: int) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), position)
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, token: torch.Tensor, position: int) -> torch.Tensor:
        """The next token, (1, 1), after ``token`` at ``position``."""
        x = self.embedding(token)
        for layer in self.layers:
            x = layer(x, position)
        return self.head(self.norm(x)).argmax(-1)


@torch.no_grad()
def main() -> None:
    model = Decoder().to("cuda", torch.bfloat16).eval()
    token = torch.zeros(1, 1, dtype=torch.long, device="cuda")
    for position in range(PROMPT, PROMPT + TOKENS):
        with optrace.step():
            token = model(token, position)


if __name__ == "__main__":
    main()
