"""Does a trace leave anything behind? Many in one process, whole ones and ones that were interrupted.

    python -m tests.bench.soak [TIMES [KIND]]

TIMES (default 200) traces of a training step in fake mode run to their end; as many are interrupted by a call, drawn
at random; as many by a timer, anywhere inside the session. KIND is how the names of the kinds begin that are run
(``whole``, ``interrupted``). Exit status 1 if a tensor, a file, a mode or a name of
torch is not as it was before.
"""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from optrace.tracing import Session, open_session
from tests.standin.torch_state import torch_state


def step() -> None:
    """A training step: modules, autocast, dropout, backward pass, optimizer."""
    model = nn.Sequential(
        nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 4)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(torch.randn(8, 16, device="cuda")).float().square().mean()
        loss.backward()
        optimizer.step()


def traced(session: Session) -> None:
    with session.recording():
        step()


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds."""

    tensors: int
    files: int
    resident: int  # bytes

    @classmethod
    def now(cls) -> Held:
        gc.collect()
        tensors = sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())
        with open("/proc/self/statm") as statm:
            pages = int(statm.read().split()[1])
        return cls(tensors, len(os.listdir("/proc/self/fd")), pages * resource.getpagesize())


Run = Callable[[Session], None]


def interrupting_call(number: int) -> Run:
    """A trace whose call ``number`` is interrupted instead of being executed."""

    def run(session: Session) -> None:
        tracer = session._tracer
        recorded = tracer.call

        def call(run: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            if len(session.graph) == number:
                raise KeyboardInterrupt
            return recorded(run, func, args, kwargs)

        tracer.call = call  # type: ignore[method-assign]  # between the program and the recorder
        traced(session)

    return run


def interrupted_after(seconds: float) -> Run:
    """A trace that a signal interrupts wherever it is after so much process time."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def run(session: Session) -> None:
        before = signal.signal(signal.SIGPROF, interrupt)
        try:
            signal.setitimer(signal.ITIMER_PROF, seconds)
            traced(session)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)

    return run


def left_changed(run: Run) -> tuple[bool, list[object]]:
    """Whether a trace was interrupted, and what it left of torch that is not as before."""
    before = torch_state()
    interrupted = False
    try:
        with open_session("fake") as session:
            run(session)
    except (KeyboardInterrupt, RuntimeError) as error:
        # What is raised inside autograd's engine, between two calls, arrives as a RuntimeError: see docs/limits.md.
        if isinstance(error, RuntimeError) and "autograd lost it" not in str(error):
            raise
        interrupted = True
    return interrupted, before.changed_in(torch_state())


def calls_and_seconds() -> tuple[int, float]:
    """Of one warm trace: its calls, and its process time."""
    for _ in range(2):
        with open_session("fake") as session:
            start = time.process_time()
            traced(session)
            seconds = time.process_time() - start
            calls = len(session.graph)
    return calls, seconds


def main(times: int, kind: str = "") -> int:
    calls, seconds = calls_and_seconds()
    draw = random.Random(0)
    kinds: dict[str, list[Run]] = {
        "whole": [traced] * times,
        "interrupted by a call": [interrupting_call(draw.randrange(calls)) for _ in range(times)],
        "interrupted by a timer": [interrupted_after(draw.uniform(0, seconds)) for _ in range(times)],
    }
    print(f"torch {torch.__version__}, {calls} calls a trace")
    bad = 0
    for name, runs in kinds.items():
        if not name.startswith(kind):
            continue
        interrupted = 0
        changed: list[object] = []
        early = Held.now()
        for number, run in enumerate(runs):
            stopped, left = left_changed(run)
            interrupted += stopped
            changed += left
            if number + 1 == max(1, times // 10):
                early = Held.now()  # caches are full
        late = Held.now()
        bad += len(changed) + max(0, late.tensors - early.tensors) + max(0, late.files - early.files)
        print(
            f"{name}: {times} traces, {interrupted} stopped early, {len(changed)} names or switches of torch changed "
            f"{changed[:3]}; from the {max(1, times // 10)}th to the last: tensors {early.tensors} to {late.tensors}, "
            f"files {early.files} to {late.files}, resident memory {early.resident / 2**20:.1f} to "
            f"{late.resident / 2**20:.1f} MiB",
            flush=True,
        )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200, *sys.argv[2:]))
