"""optrace beside what people would use, in one run: process time and memory of a program under each.

    pip install -e '.[bench,transformers]' && python -m pytest tests/bench/test_beside.py -s

A round runs every variant once, one after the other, so that all meet the same load of the machine. Peak memory is what
Python allocated (``tracemalloc``), in a run of its own. Not part of the test gate: a figure is no assertion.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
import tracemalloc
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode

from optrace.tracing import Session, open_session

pytest.importorskip("pytest_benchmark", reason="the benchmarks are run by pytest-benchmark")

ROUNDS = 5

pytestmark = pytest.mark.filterwarnings("default")  # other people's programs may warn

Step = Callable[[], object]
Watch = Callable[[], AbstractContextManager[Any]]


def debug_mode(**options: Any) -> AbstractContextManager[Any]:
    """torch's own recorder of calls; left alone, it passes calls on fake tensors over."""
    return pytest.importorskip("torch.utils._debug_mode").DebugMode(record_faketensor=True, **options)


def mem_tracker() -> AbstractContextManager[Any]:
    """torch's own replay of the allocator's use."""
    return pytest.importorskip("torch.distributed._tools.mem_tracker").MemTracker()


#: Modes that a step runs under, in torch's fake mode.
WATCHES: Mapping[str, Watch] = {
    "FlopCounterMode": lambda: FlopCounterMode(display=False),
    "DebugMode": debug_mode,
    "DebugMode with stacks": lambda: debug_mode(record_stack_trace=True),
    "MemTracker": mem_tracker,
}


def under(watch: Watch, step: Step) -> Step:
    def run() -> None:
        with watch():
            step()

    return run


def recorded(session: Session, step: Step) -> dict[str, Step]:
    """A step recorded by optrace: into the graph that goes on, and into a new one each time, which looks at all that is
    there and learns layouts, lines and modules again."""

    def appended() -> None:
        with session.recording():
            step()

    def anew() -> None:
        session.forget()
        appended()

    return {"recorded": appended, "recorded, a new graph": anew}


def gpt2(device: str) -> Step:
    """A training step of GPT-2 small: batch 4, 256 tokens, AdamW."""
    transformers = pytest.importorskip("transformers")
    with torch.device(device):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
        tokens = torch.randint(0, 1000, (4, 256))
    return trained(model, lambda: model(input_ids=tokens, labels=tokens).loss)


def resnet50(device: str) -> Step:
    """A training step of ResNet-50: batch 32, 224 x 224, AdamW."""
    torchvision = pytest.importorskip("torchvision")
    with torch.device(device):
        model, images = torchvision.models.resnet50(), torch.randn(32, 3, 224, 224)
    return trained(model, lambda: model(images).sum())


def trained(model: nn.Module, loss: Callable[[], torch.Tensor]) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def encoder(device: str) -> Step:
    """The forward pass of an encoder of 12 layers of width 768: batch 8, 128 tokens."""
    with torch.device(device):
        layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
        model, x = (
            nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).train(),
            torch.randn(8, 128, 768),
        )
    return lambda: model(x)


def seconds(run: Step) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def peak_bytes(run: Step) -> int:
    """The most that Python held at a time during a run, beyond what it held before."""
    gc.collect()
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def measure(variants: Mapping[str, Step], benchmark: Any) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Seconds of each variant in each round, and its peak of memory."""
    for run in variants.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in variants}

    def once() -> None:
        for name, run in variants.items():
            times[name].append(seconds(run))

    benchmark.pedantic(once, rounds=ROUNDS)
    return times, {name: peak_bytes(run) for name, run in variants.items()}


def show(
    capsys: Any, title: str, calls: int, times: dict[str, list[float]], peaks: dict[str, int], beside: str
) -> None:
    with capsys.disabled():
        print(
            f"\n{title}: {calls} calls, torch {torch.__version__}, {ROUNDS} rounds, beside {beside!r}, "
            f"load {os.getloadavg()[0]:.0f}"
        )
        for name, row in times.items():
            ratio = statistics.median(a / b for a, b in zip(row, times[beside], strict=True))
            print(
                f"  {name:26} min {min(row) * 1e3:8.1f} ms  median {statistics.median(row) * 1e3:8.1f} ms  x{ratio:5.2f}"
                f"  {peaks[name] / 2**20:7.1f} MiB  {peaks[name] / calls:7.0f} bytes a call"
            )


@pytest.mark.parametrize("program", [gpt2, resnet50, encoder])
def test_a_step_under_modes_that_watch_it(program, benchmark, capsys):
    """Two fake modes: torch's own, on the CPU since it has no backward pass for a GPU that is not there, and the
    stand-in for a GPU. Each mode beside the fake mode that it ran in."""
    with ExitStack() as stack:
        session = stack.enter_context(open_session("fake"))
        step = program("cuda")
        step()
        with session.recording():
            step()
        calls = len(session.graph)

        variants: dict[str, Step] = {"stand-in": step} | {
            f"stand-in, {name}": run for name, run in recorded(session, step).items()
        }
        variants |= {
            f"stand-in, {name}": under(WATCHES[name], step) for name in ("DebugMode", "DebugMode with stacks")
        }
        here = measure(variants, benchmark)
    show(capsys, program.__name__, calls, *here, "stand-in")


@pytest.mark.parametrize("program", [gpt2, resnet50, encoder])
def test_a_step_under_torchs_fake_mode(program, benchmark, capsys):
    with FakeTensorMode(allow_non_fake_inputs=True):
        step = program("cpu")
        variants: dict[str, Step] = {"FakeTensorMode": step}
        variants |= {name: under(watch, step) for name, watch in WATCHES.items()}
        with debug_mode() as seen:
            step()
        calls = len(seen.operators)
        assert calls
        there = measure(variants, benchmark)
    show(capsys, program.__name__, calls, *there, "FakeTensorMode")


def test_a_forward_pass_on_the_cpu_that_is_drawn(benchmark, capsys):
    """torchlens computes and keeps every activation; torchview builds its graph on meta tensors; optrace records the
    run on the CPU."""
    torchlens, torchview = pytest.importorskip("torchlens"), pytest.importorskip("torchview")
    layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).train(), torch.randn(2, 32, 256)
    with open_session("cpu", device="cpu") as session:
        recording = recorded(session, lambda: model(x))
        recording["recorded"]()
        calls = len(session.graph)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            variants: dict[str, Step] = {
                "bare": lambda: model(x),
                **recording,
                "torchview": lambda: torchview.draw_graph(model, input_data=x, device="cpu"),
                "torchlens": lambda: logged(torchlens, model, x),
            }
            drawn = measure(variants, benchmark)
    show(capsys, "encoder of 12 layers of 256", calls, *drawn, "bare")


def logged(torchlens: Any, model: nn.Module, x: torch.Tensor) -> None:
    with _disable_current_modes():
        (getattr(torchlens, "log_forward_pass", None) or torchlens.trace)(model, x)


def test_an_eager_loop_of_tiny_ops_on_the_cpu(benchmark, capsys):
    model = nn.Sequential(*(layer for _ in range(20) for layer in (nn.Linear(8, 8), nn.ReLU())))
    x = torch.randn(4, 8)

    def loop() -> None:
        with torch.no_grad():
            for _ in range(25):
                model(x)

    def tracked() -> None:
        """MemTracker refuses a module that is called again unless it forgets the call before."""
        with torch.no_grad(), mem_tracker() as tracker:
            for _ in range(25):
                tracker.reset_mod_stats()
                model(x)

    with open_session("cpu", device="cpu") as session:
        recording = recorded(session, loop)
        recording["recorded"]()
        calls = len(session.graph)
        variants: dict[str, Step] = {"bare": loop, **recording}
        variants |= {name: under(watch, loop) for name, watch in WATCHES.items()}
        variants["MemTracker"] = tracked
        times = measure(variants, benchmark)
    show(capsys, "MLP of 20 layers of 8", calls, *times, "bare")
