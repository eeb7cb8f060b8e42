"""One training step of a small MLP: forward, loss, backward, AdamW.

    optrace samples/mlp_train.py --out graph.svg
    optrace samples/mlp_train.py --out graph.svg --steps 2

**What the picture shows.** Three parts: the forward chain, the backward pass running against it with two
matmuls for each forward one, and a few wide foreach nodes at the end, where AdamW updates all parameters
at once. At batch 64 no op has enough work to hide its own launch, so nearly every box is launch-bound: this
is the program that a CUDA graph was made for. The first step is not shown: it creates the optimizer's state.
"""

import torch
import torch.nn.functional as F
from torch import nn

import optrace


def main() -> None:
    model = nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images = torch.randn(64, 784, device="cuda")
    labels = torch.randint(10, (64,), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    step()
    for _ in range(4):
        with optrace.step():
            step()


if __name__ == "__main__":
    main()
