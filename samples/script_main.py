"""An ordinary training script, as people have them: work under ``if __name__ == "__main__":``, arguments of its
own, and two lines for optrace.

    python samples/script_main.py --width 256
    optrace samples/script_main.py --out graph.svg --warmup 1 -- --width 256
    optrace samples/script_main.py --out graph.svg --warmup 1 --steps 2 -- --width 256

**What the picture shows.** One training step of a small autoencoder. ``optrace.step()`` says what a step is: the
building of the model is not in the picture, nor is the first step, in which SGD makes its momentum buffers
(``--warmup 1``). Without the mark the whole run would be one trace, set-up included. Under plain ``python`` the
mark does nothing.
"""

import argparse

import torch
from torch import nn

import optrace


def train(width: int, steps: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(width, width // 4), nn.Tanh(), nn.Linear(width // 4, width)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for _ in range(steps):
        batch = torch.rand(128, width, device=device)
        with optrace.step():
            loss = (model(batch) - batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()
    train(arguments.width, arguments.steps)
