"""What stops a capture is named with its place, and what does not is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from optrace.cost.profiles import find_gpu
from optrace.diagnosis.cuda_graph import Part, parts_us, replay_us
from optrace.report import Report
from tests.diagnosis.traced import traced_step


def kinds(report: Report) -> dict[str, list[str]]:
    """Each kind of blocker with the ops that give it."""
    graph = report.graph
    return {
        blocker.kind: [graph.facts(call).label for call in blocker.calls] for blocker in report.cures.blockers
    }


def gpu(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device="cuda")


def test_replay_is_device_time_a_constant_and_a_little_a_launch() -> None:
    """Measured on an H200: 42 us, and 0.59 us a launch."""
    assert replay_us(1000.0, 100, find_gpu("h200")) == pytest.approx(1000 + 42 + 0.59 * 100)
    assert replay_us(1000.0, 100, find_gpu("h200"), 3) == pytest.approx(1000 + 3 * 42 + 0.59 * 100)


def test_the_host_goes_on_to_the_next_graph_while_the_device_runs() -> None:
    """Launched at 100 + 42 and at 142 + 300 + 42 = 484, where the first has ended at 142 + 500 + 0.59 x 10 = 647.9."""
    first, second = Part(500.0, 10, before_us=100.0), Part(50.0, 100, before_us=300.0)
    h200 = find_gpu("h200")
    assert parts_us([first, second], h200) == pytest.approx(647.9 + 50 + 0.59 * 100)
    # Where it waits for the first, the second is launched at 647.9 + 3 + 342.
    waits = replace(first, waits=True)
    assert parts_us([waits, second], h200, sync_us=3.0) == pytest.approx(647.9 + 3 + 342 + 50 + 59)


def test_nothing_stops_a_step_that_stays_on_the_device() -> None:
    def step() -> torch.Tensor:
        x = gpu(8, 8)
        return (x @ x + torch.rand(8, 8, device="cuda")).relu()

    assert kinds(traced_step(step)) == {}


def test_item_is_a_sync_with_its_line() -> None:
    def step() -> float:
        return gpu(8, 8).sum().item()

    report = traced_step(step)
    assert kinds(report) == {"sync": ["_local_scalar_dense"]}
    (blocker,) = report.cures.blockers
    (line,) = blocker.lines(report.graph)
    assert line.endswith(f"test_cuda_graph.py:{step.__code__.co_firstlineno + 1}")


def test_a_copy_to_the_host_is_a_sync() -> None:
    assert kinds(traced_step(lambda: gpu(8, 8).cpu())) == {"sync": ["_to_copy"]}


def test_a_copy_from_the_host_is_named() -> None:
    assert kinds(traced_step(lambda: torch.ones(8).cuda())) == {"host_copy": ["_to_copy"]}


def test_numbers_from_the_host_are_alike_in_every_replay() -> None:
    """``where`` with plain numbers, as sdpa does with a boolean mask, makes CPU tensors of them."""
    assert kinds(traced_step(lambda: torch.where(gpu(8) > 0, 0.0, float("-inf")))) == {}


def test_what_was_computed_on_the_cpu_is_not() -> None:
    scale = torch.tensor(1.0)
    assert kinds(traced_step(lambda: gpu(8) * (scale + 1))) == {"cpu_tensor": ["mul"]}
    assert kinds(traced_step(lambda: gpu(8) * torch.rand((), device="cpu"))) == {"cpu_tensor": ["mul"]}


def test_a_size_that_depends_on_the_data() -> None:
    assert "dynamic_shape" in kinds(traced_step(lambda: (gpu(8, 8) > 0).nonzero()))


def training(**options: bool) -> Callable[[], None]:
    made: list[tuple[nn.Module, torch.optim.Optimizer]] = []

    def step() -> None:
        if not made:
            model = nn.Linear(8, 8).cuda()
            made.append((model, torch.optim.AdamW(model.parameters(), **options)))
        model, optimizer = made[0]
        optimizer.zero_grad()
        model(gpu(8, 8)).sum().backward()
        optimizer.step()

    return step


def test_an_optimizer_that_counts_on_the_cpu() -> None:
    assert set(kinds(traced_step(training()))) == {"optimizer"}


def test_a_capturable_optimizer() -> None:
    assert kinds(traced_step(training(capturable=True))) == {}


def test_steps_of_other_shapes() -> None:
    sizes = iter((8, 8, 16))

    def step() -> torch.Tensor:
        return gpu(next(sizes), 8).relu()

    assert set(kinds(traced_step(step, steps=2))) == {"varying_shape"}


def test_steps_of_equal_shapes() -> None:
    assert kinds(traced_step(lambda: gpu(8, 8).relu(), steps=2)) == {}
