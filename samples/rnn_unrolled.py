"""A recurrent network unrolled over 1,000 time steps, and back through all of them.

    optrace samples/rnn_unrolled.py --out graph.svg
    optrace samples/rnn_unrolled.py --out graph.svg -- --steps 100

**What the picture shows.** Two loops: one turn forward, ``x1,000``, and one turn backward. The arrow that leads from
the end of a turn up to its beginning is the hidden state on its way to the next time step. The first and the last turn
of the backward pass stand apart, because they have nothing to add their gradients to, or nobody to pass one on to.
A turn is a few launches of a few microseconds each: the step is launch-bound, and a CUDA graph would help most.
"""

import argparse

import torch
from torch import nn

import optrace

WIDTH, BATCH, CLASSES = 256, 32, 64


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps

    cell, head = nn.GRUCell(WIDTH, WIDTH).cuda(), nn.Linear(WIDTH, CLASSES).cuda()
    optimizer = torch.optim.AdamW([*cell.parameters(), *head.parameters()])
    xs = torch.randn(steps, BATCH, WIDTH, device="cuda")
    labels = torch.randint(CLASSES, (BATCH,), device="cuda")

    def train(sequence: torch.Tensor) -> None:
        optimizer.zero_grad()
        h = torch.zeros(BATCH, WIDTH, device="cuda")
        for x in sequence:
            h = torch.tanh(cell(x, h))
        nn.functional.cross_entropy(head(h), labels).backward()
        optimizer.step()

    train(xs[:1])  # makes the optimizer's state
    with optrace.step():
        train(xs)


if __name__ == "__main__":
    main()
