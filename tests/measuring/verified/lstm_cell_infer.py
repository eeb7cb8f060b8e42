"""An LSTM cell called 12 times in a Python loop, float32, a small batch: nothing but launches."""

import torch
from torch import nn

cell, head = nn.LSTMCell(64, 128).cuda(), nn.Linear(128, 32).cuda()
x = torch.randn(12, 16, 64, device="cuda")


def step():
    with torch.no_grad():
        h = c = torch.zeros(16, 128, device="cuda")
        for t in range(12):
            h, c = cell(x[t], (h, c))
        return head(h)
