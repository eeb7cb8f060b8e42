"""A two-tower recommender whose batch lies on the CPU, unpinned: each step copies it first."""

import torch
import torch.nn.functional as F
from torch import nn


def tower():
    return nn.Sequential(
        nn.Linear(128, 512), nn.ReLU(), nn.LayerNorm(512), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 64)
    ).cuda()


users, items = tower(), tower()
user_rows, item_rows = nn.Embedding(50000, 128).cuda(), nn.Embedding(50000, 128).cuda()
user_ids, item_ids = torch.randint(0, 50000, (4096,)), torch.randint(0, 50000, (4096,))


def step():
    with torch.no_grad():
        u = F.normalize(users(user_rows(user_ids.to("cuda"))), dim=-1)
        i = F.normalize(items(item_rows(item_ids.to("cuda"))), dim=-1)
        return ((u @ i.t()) / 0.05).log_softmax(-1).diagonal().mean()
