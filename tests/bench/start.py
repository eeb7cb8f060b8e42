"""What a start takes: the command's help, and the toy block beside a script that imports torch and networkx and runs one
fake op.

    python -m tests.bench.start [ROUNDS]

CPU time of the processes, user and system.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Sequence

BARE = """
import networkx, torch
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    torch.empty(2, 2) + 1
"""

PROGRAMS = {
    "help": ("-m", "optrace.cli", "--help"),
    "bare": ("-c", BARE),
    "toy block": ("-m", "optrace.cli", "samples/toy_block.py", "--mode", "fake"),
}


def cpu_s(words: Sequence[str]) -> float:
    """CPU seconds of a Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(rounds: int) -> None:
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(rounds):
        for name, words in PROGRAMS.items():
            times[name].append(cpu_s(words))
    print(f"{rounds} rounds, load {os.getloadavg()[0]:.0f}")
    for name, row in times.items():
        print(f"{name:10} min {min(row):.2f} s, of all rounds {', '.join(f'{s:.2f}' for s in row)}")
    print(f"toy block to bare: {min(times['toy block']) / min(times['bare']):.2f} by minima")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
