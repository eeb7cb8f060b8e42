"""What recording adds to GPT-2 small's training step (batch 4, 256 tokens, AdamW) under the stand-in.

    python -m tests.bench.gpt2 [ROUNDS]

Each round takes a plain step and a recorded one, each first in its turn, with the garbage collector off. Times are
process time of one thread.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
import transformers

from optrace.tracing import Session, open_session


def seconds(run: Callable[[], None]) -> float:
    """Process time of a run."""
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        run()
        return time.process_time() - start
    finally:
        gc.enable()


def training_step(device: str = "cuda") -> Callable[[], None]:
    """A training step of GPT-2 small, not warm yet."""
    with torch.device(device):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
        tokens = torch.randint(0, 1000, (4, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()

    return step


def measure(session: Session, rounds: int) -> tuple[int, list[float], list[float]]:
    """Calls of a step, and seconds of plain and of recorded steps, a round each."""
    step = training_step()

    def recorded() -> None:
        with session.recording():
            step()

    for _ in range(2):
        step()
    recorded()
    session.forget()
    recorded()
    calls = len(session.graph)
    plain_s: list[float] = []
    recorded_s: list[float] = []
    for number in range(rounds):
        pair = [(step, plain_s), (recorded, recorded_s)]
        for run, times in pair if number % 2 else reversed(pair):
            times.append(seconds(run))
    return calls, plain_s, recorded_s


def main(rounds: int) -> None:
    torch.set_num_threads(1)
    with open_session("fake") as session:
        calls, plain_s, recorded_s = measure(session, rounds)
    ratios = [slow / quick for slow, quick in zip(recorded_s, plain_s, strict=True)]
    added_us = (min(recorded_s) - min(plain_s)) / calls * 1e6
    print(f"torch {torch.__version__}, {calls} calls, {rounds} rounds, load {os.getloadavg()[0]:.1f}")
    for name, times in (("plain", plain_s), ("recorded", recorded_s)):
        print(f"{name:9} min {min(times) * 1e3:6.1f} ms, median {statistics.median(times) * 1e3:6.1f} ms")
    print(
        f"ratio: {min(recorded_s) / min(plain_s):.3f} by minima, {statistics.median(ratios):.3f} median of rounds"
    )
    print(f"added a call: {added_us:.0f} us by minima")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
