"""What recording costs beside the run it watches.

    pip install -e '.[bench,transformers]' && python -m pytest tests/bench -s

A round runs every variant once, one after the other, so that all meet the same load of the machine; times are
``time.process_time``. Not part of the test gate: a figure is no assertion.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from optrace.tracing import open_session

pytest.importorskip("pytest_benchmark", reason="the benchmarks are run by pytest-benchmark")

ROUNDS = 7

pytestmark = pytest.mark.filterwarnings("default")  # other people's programs may warn


def measure(benchmark: Any, variants: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Seconds of each variant in each round."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}

    def round_() -> None:
        for name, run in variants.items():
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)

    benchmark.pedantic(round_, rounds=ROUNDS, warmup_rounds=1)
    return {name: times[1:] for name, times in seconds.items()}  # without the warm-up


def show(capsys: Any, title: str, seconds: Mapping[str, list[float]], beside: str, calls: int) -> None:
    """A line a variant: minimum, median, and the median of the ratios to ``beside`` of the same round."""
    with capsys.disabled():
        print(f"\n{title}, {calls} calls, torch {torch.__version__}, {ROUNDS} rounds")
        for name, times in seconds.items():
            ratios = [mine / base for mine, base in zip(times, seconds[beside], strict=True)]
            added = (min(times) - min(seconds[beside])) / calls
            print(
                f"  {name:34} min {min(times) * 1e3:7.1f} ms  median {statistics.median(times) * 1e3:7.1f} ms  "
                f"x {min(times) / min(seconds[beside]):.2f} by minima, {statistics.median(ratios):.2f} by rounds  "
                f"{added * 1e6:+7.1f} us a call"
            )


def gpt2_step(device: str) -> Callable[[], None]:
    """A training step of GPT-2 small: batch 4, 256 tokens, AdamW; warm."""
    pytest.importorskip("transformers")
    from tests.bench.gpt2 import training_step

    step = training_step(device)
    step()
    step()
    return step


def debug_mode(**options: Any) -> AbstractContextManager[Any]:
    """torch's own recorder of calls."""
    return pytest.importorskip("torch.utils._debug_mode").DebugMode(record_faketensor=True, **options)


def within(
    context: Callable[[], AbstractContextManager[Any]], step: Callable[[], None]
) -> Callable[[], None]:
    def run() -> None:
        with context():
            step()

    return run


def test_gpt2_training_step_under_the_stand_in(benchmark, capsys):
    with open_session("fake") as session:
        step = gpt2_step("cuda")
        with session.recording():
            step()
        calls = len(session.graph)
        seconds = measure(
            benchmark,
            {
                "stand-in alone": step,
                "stand-in, recorded": within(session.recording, step),
                "stand-in, DebugMode": within(debug_mode, step),
                "stand-in, DebugMode with stacks": within(lambda: debug_mode(record_stack_trace=True), step),
            },
        )
    show(capsys, "GPT-2 small, training step", seconds, "stand-in alone", calls)
    show(capsys, "the same", seconds, "stand-in, DebugMode with stacks", calls)


def test_gpt2_training_step_under_torchs_fake_mode(benchmark, capsys):
    """On the CPU: torch's fake mode has no backward pass for a GPU that is not there."""
    with FakeTensorMode():
        step = gpt2_step("cpu")
        seconds = measure(
            benchmark,
            {
                "FakeTensorMode alone": step,
                "FakeTensorMode, DebugMode": within(debug_mode, step),
                "FakeTensorMode, DebugMode with stacks": within(
                    lambda: debug_mode(record_stack_trace=True), step
                ),
            },
        )
    with open_session("fake", device="cpu") as session:
        step = gpt2_step("cpu")
        with session.recording():
            step()
    show(capsys, "GPT-2 small, training step", seconds, "FakeTensorMode alone", len(session.graph))


def test_eager_loop_of_tiny_ops_on_the_cpu(benchmark, capsys):
    model = nn.Sequential(*(layer for _ in range(20) for layer in (nn.Linear(8, 8), nn.ReLU())))
    x = torch.randn(4, 8)

    def loop() -> None:
        with torch.no_grad():
            for _ in range(100):
                model(x)

    with open_session("cpu", device="cpu") as session:
        with session.recording():
            loop()
        calls = len(session.graph)
        seconds = measure(
            benchmark,
            {
                "bare": loop,
                "recorded": within(session.recording, loop),
                "null dispatch mode": within(NullMode, loop),
                "bare, module hooks": within(session._tracer._modules.installed, loop),
                "DebugMode with stacks": within(lambda: debug_mode(record_stack_trace=True), loop),
            },
        )
    show(capsys, "MLP of 20 layers of 8, 100 times on the CPU", seconds, "bare", calls)


class NullMode(torch.utils._python_dispatch.TorchDispatchMode):
    """Passes each call on: what any recorder in Python pays."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_growth_with_the_number_of_calls(benchmark, capsys):
    """Time and memory of the record a call stay what they are as a record grows."""
    x = torch.zeros(2)
    rows = []

    def loop(calls: int) -> None:
        for _ in range(calls // 2):
            y = x + 1
            y.mul_(2)

    with open_session("cpu", device="cpu") as session:

        def recorded(calls: int) -> tuple[float, float]:
            """Seconds, and bytes by which the process grew."""
            session.forget()
            before, start = resident_bytes(), time.process_time()
            with session.recording():
                loop(calls)
            assert len(session.graph) == calls
            return time.process_time() - start, resident_bytes() - before

        recorded(1_000)
        for calls, rounds in GROWTH.items():
            runs = [recorded(calls) for _ in range(rounds)]
            rows.append((calls, min(seconds for seconds, _ in runs), max(held for _, held in runs)))
        benchmark.pedantic(recorded, args=(1_000,), rounds=3)
    with capsys.disabled():
        print(f"\na loop of two calls a turn, torch {torch.__version__}, load {os.getloadavg()[0]:.0f}")
        for calls, took, held in rows:
            print(
                f"  {calls:9,} calls: {took:7.2f} s, {took / calls * 1e6:5.1f} us a call, process {held / 2**20:+.1f} MiB"
            )
        sizes, times = (np.log([row[column] for row in rows]) for column in (0, 1))
        print(f"  exponent {np.polyfit(sizes, times, 1)[0]:.2f}")


#: Calls of a record, and how many times it is made.
GROWTH = {1_000: 5, 10_000: 3, 100_000: 2, 1_000_000: 1}


def resident_bytes() -> int:
    """What the process holds in memory (Linux)."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
