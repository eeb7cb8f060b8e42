"""Memory of the record a call: what Python holds for it after a long eager loop, by tracemalloc.

    python -m tests.bench.memory [CALLS]

Half of the calls make a tensor with a storage of its own, which is freed in the next turn.
"""

from __future__ import annotations

import sys
import tracemalloc

import torch

from optrace.tracing import open_session


def bytes_a_call(calls: int) -> float:
    """Of a loop of ``calls`` calls, two a turn."""
    x = torch.zeros(2)
    with open_session("cpu", device="cpu") as session:

        def loop(turns: int) -> None:
            with session.recording():
                for _ in range(turns):
                    y = x + 1
                    y.mul_(2)

        loop(1)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        loop(calls // 2)
        held = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    return held / calls


if __name__ == "__main__":
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    print(f"torch {torch.__version__}, {calls} calls: {bytes_a_call(calls):.0f} bytes a call")
