"""An LSTM cell called once a time step, with the running loss read on the host each time.

    optrace samples/lstm_cell_loop.py --out graph.svg --assume zero

**What the picture shows.** One long chain: each cell waits for the state of the one before it. The cells are
tiny, so they are launch-bound, and ``.item()`` makes it worse: the host has to wait until the GPU has caught
up, and then the GPU waits until the host has issued the next cell. The ``_local_scalar_dense`` boxes are
the ``sync`` ones; the idle time that they cause is charged to them. Keep the loss on the GPU and read it once
after the loop (``-- --no-item``) and the syncs are gone; the launches stay.

Without a GPU nothing is computed, so ``.item()`` has no value to return: ``--assume zero`` says what to
pretend (and the report says that it was pretended), ``--mode cpu`` computes it.
"""

import argparse

import torch
from torch import nn

import optrace

WIDTH, BATCH, STEPS = 256, 32, 12


def main() -> float:
    parser = argparse.ArgumentParser()
    parser.add_argument("--no-item", action="store_true", help="read the loss once, after the loop")
    every_step = not parser.parse_args().no_item

    cell = nn.LSTMCell(WIDTH, WIDTH).cuda()
    xs = torch.randn(STEPS, BATCH, WIDTH, device="cuda")
    h = c = torch.zeros(BATCH, WIDTH, device="cuda")
    total = torch.zeros((), device="cuda")
    with optrace.step(), torch.no_grad():
        for x in xs:
            h, c = cell(x, (h, c))
            total += h.square().mean()
            if every_step and total.item() > 1e6:
                raise RuntimeError("diverged")
    return total.item()


if __name__ == "__main__":
    print(main())
