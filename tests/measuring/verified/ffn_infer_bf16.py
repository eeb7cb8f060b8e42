"""A transformer's feed-forward block, pre-norm, bf16: two large products, layer norm, GELU, residual."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width=2048):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


model = Block().eval()


def get_inputs():
    return (torch.randn(8, 1024, 2048),)
