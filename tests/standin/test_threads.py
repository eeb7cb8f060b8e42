"""Threads that a program starts make their calls inside the stand-in, one at a time."""

from __future__ import annotations

import queue
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from optrace.tracing import open_session
from tests.standin.torch_state import torch_state


@pytest.fixture
def _many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def work(_: object = None) -> torch.Tensor:
    x = torch.ones(4, 4, device="cuda", requires_grad=True)
    (x @ x).sum().backward()
    assert x.grad is not None
    return x.grad


class Subclass(threading.Thread):
    """Its work is its own ``run``."""

    def run(self) -> None:
        work()


def in_a_pool(function: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function).result()


def in_a_thread(function: Any) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def in_a_subclass(_: Any) -> None:
    thread = Subclass()
    thread.start()
    thread.join()


@pytest.mark.parametrize("run", [in_a_thread, in_a_pool, in_a_subclass])
@pytest.mark.parametrize("mode", ["fake", "cpu"])
def test_the_calls_are_those_of_the_program_s_own_thread(run: Any, mode: Any) -> None:
    ops = []
    for runner in (lambda function: function(), run):
        with open_session(mode) as session:
            with session.recording():
                runner(work)
            ops.append([(node.op, node.phase, str(node.outputs[0].device)) for node in session.graph])
    assert len(ops[0]) > 5
    assert ops[0] == ops[1]


@pytest.mark.usefixtures("_many_switches")
def test_threads_that_run_at_the_same_time_lose_no_call_and_see_their_device() -> None:
    turns, threads = 60, 4
    devices: set[str] = set()

    def many(_: object) -> None:
        x = torch.ones(4, device="cuda")
        for turn in range(turns):
            x = x * turn
            devices.add(f"{x.device} {x.is_cuda} {x.shape}")

    with open_session("fake") as session, session.recording(), ThreadPoolExecutor(threads) as pool:
        results = pool.map(many, range(threads))
        many(None)
        list(results)
    assert Counter(node.op for node in session.graph) == {
        "aten.ones.default": threads + 1,
        "aten.mul.Tensor": turns * (threads + 1),
    }
    assert devices == {"cuda:0 True torch.Size([4])"}


@pytest.mark.usefixtures("_many_switches")
def test_a_loader_that_prefetches_is_in_no_module_of_the_model() -> None:
    batches: queue.Queue[torch.Tensor | None] = queue.Queue(maxsize=2)
    scaled = torch.nn.Tanh()

    def prefetch() -> None:
        for _ in range(8):
            batches.put(scaled(torch.ones(4, 8).cuda()))
        batches.put(None)

    with open_session("fake") as session:
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).cuda()
        with session.recording():
            loader = threading.Thread(target=prefetch)
            loader.start()
            while (batch := batches.get()) is not None:
                model(batch)
            loader.join()
    modules = {(node.op, node.module.path if node.module else None) for node in session.graph}
    assert modules == {
        ("aten.ones.default", None),
        ("aten._to_copy.default", None),
        ("aten.tanh.default", None),
        ("aten.t.default", "Sequential.0"),
        ("aten.addmm.default", "Sequential.0"),
        ("aten.relu.default", "Sequential.1"),
        ("aten.detach.default", "Sequential.1"),
    }
    assert sum(node.op == "aten.relu.default" for node in session.graph) == 8


def test_a_thread_that_outlives_the_trace_makes_plain_tensors_and_torch_is_as_before() -> None:
    with open_session("fake"):
        in_a_thread(work)
    before = torch_state()
    goes_on, made = threading.Event(), []

    def stays() -> None:
        work()
        begun.set()
        goes_on.wait(60)
        made.append(torch.ones(2) + 1)

    begun = threading.Event()
    with open_session("fake"):
        thread = threading.Thread(target=stays)
        thread.start()
        assert begun.wait(60)
    assert before.changed_in(torch_state()) == []
    goes_on.set()
    thread.join()
    assert (type(made[0]), made[0].tolist()) == (torch.Tensor, [2, 2])
    assert before.changed_in(torch_state()) == []
