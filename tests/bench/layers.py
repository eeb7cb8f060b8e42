"""What each layer of recording adds to an eager loop of tiny ops on the CPU.

    python -m tests.bench.layers [ROUNDS]

Each variant has all that the one before it has and one thing more; a round runs each once. Process time of one thread.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from optrace.tracing import Session, open_session
from optrace.tracing.calls import WatchingMode
from optrace.tracing.encoding import Encoder
from optrace.tracing.identity import Identities
from optrace.tracing.sources import SourceFinder

TURNS = 20


class _Runs:
    """A watcher that does nothing."""

    def call(self, run: Callable[..., Any], _func: Any, args: Any, kwargs: Any) -> Any:
        return run(*args, **kwargs)


def layers(session: Session, loop: Callable[[], None]) -> Mapping[str, Callable[[], None]]:
    """The variants, by what the last one has more."""
    tracer = session._tracer
    known = tracer._identities.seen(torch.ones(8))

    def drop(encoder: Encoder) -> None:
        encoder._identities.forget_gone()
        for event in encoder._events:
            if type(event) is not tuple:
                encoder._identities.forget_storage(event)  # type: ignore[arg-type]  # as in the encoder
        encoder._events.clear()

    no_tensors = patch.object(Identities, "seen", lambda *_: known)
    no_lines = patch.object(SourceFinder, "walk", lambda *_: (0,))
    no_rows = patch.object(Encoder, "encode", drop)

    @contextmanager
    def watched() -> Iterator[None]:
        with tracer._modules.installed(), WatchingMode(_Runs()):
            yield

    def within(*contexts: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            with ExitStack() as stack:
                for context in contexts:
                    stack.enter_context(context())
                loop()

        return run

    def patched(*left_out: Any) -> Callable[[], None]:
        return within(*((lambda part=part: part) for part in left_out), session.recording)

    return {
        "the loop alone": loop,
        "a mode that does nothing": within(lambda: WatchingMode(_Runs())),
        "module calls": within(watched),
        "arguments, values and events": patched(no_tensors, no_lines, no_rows),
        "tensors, storages and their ends": patched(no_lines, no_rows),
        "lines": patched(no_rows),
        "rows: everything": patched(),
    }


def main(rounds: int) -> None:
    """Print a line a layer."""
    torch.set_num_threads(1)
    model = nn.Sequential(*(layer for _ in range(20) for layer in (nn.Linear(8, 8), nn.ReLU())))
    x = torch.randn(4, 8)

    def loop() -> None:
        with torch.no_grad():
            for _ in range(TURNS):
                model(x)

    with open_session("cpu", device="cpu") as session:
        with session.recording():
            loop()
        calls = len(session.graph)
        variants = layers(session, loop)
        times: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(rounds):
            for name, run in variants.items():
                start = time.process_time()
                run()
                times[name].append((time.process_time() - start) / calls * 1e6)
    print(f"torch {torch.__version__}, {calls} calls, {rounds} rounds, load {os.getloadavg()[0]:.1f}")
    print(f"{'us a call':36} {'min':>6} {'more':>6}   {'median':>6} {'more':>6}")
    before = (0.0, 0.0)
    for name, row in times.items():
        now = (min(row), statistics.median(row))
        print(f"{name:36} {now[0]:6.1f} {now[0] - before[0]:6.1f}   {now[1]:6.1f} {now[1] - before[1]:6.1f}")
        before = now


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
