"""What the host takes for compiled code: the way into each compiled function, by what it is given."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from optrace.report import Report
from tests.diagnosis.traced import Step, traced

CALL, INPUT, BACKWARD, OPTIMIZER = 30, 4, 400, 700


def entries_us(report: Report) -> list[float]:
    return list(report.cures.entries.values())


def test_a_forward_pass_is_one_function_of_what_it_reads() -> None:
    """A weight, a bias and an input; what is made in it is not given to it. Three equal steps enter it three times."""

    def make() -> Step:
        layer, x = nn.Linear(64, 64).cuda(), torch.ones(8, 64, device="cuda")
        return torch.no_grad()(lambda: layer(x).relu() + x)

    assert entries_us(traced(make)) == [CALL + INPUT * 3]
    assert entries_us(traced(make, steps=3)) == [3 * (CALL + INPUT * 3)]


def training(layers: int, width: int, batch: int) -> Step:
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(batch, width, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    return step


def test_a_training_step_is_three_functions() -> None:
    """Backward: the loss's derivative needs the product's result alone, the weight's gradient x as well. SGD: weight and gradient."""
    forward, backward, optimized = entries_us(traced(lambda: training(1, 64, 8)))
    assert forward == CALL + INPUT * 2
    assert backward == BACKWARD + INPUT * 2
    assert optimized == OPTIMIZER + INPUT * 2


def test_a_value_that_the_program_has_to_know_ends_a_function() -> None:
    """Before .item(): x. Behind it: x again. A copy to the host is waited for inside of one function."""

    def asks() -> Step:
        x = torch.ones(64, 64, device="cuda")
        return lambda: x * (x.relu() + 1).sum().item()

    def copies() -> Step:
        x = torch.ones(64, 64, device="cuda")
        return lambda: x.relu().cpu()

    assert entries_us(traced(asks)) == [CALL + INPUT, CALL + INPUT]
    assert entries_us(traced(copies)) == [CALL + INPUT]


def test_the_host_prepares_the_backward_pass_while_the_device_runs_the_forward_pass() -> None:
    """With graphs, too: the entries of backward pass and optimizer are no part of the wall clock of a long step."""
    report = traced(lambda: training(4, 4096, 4096))
    both, gpu = report.cures.both, report.pricing.gpu
    assert both.device_us > 10_000
    device_us = both.device_us + gpu.graph_launch_us * both.launches
    assert both.wall_us == pytest.approx(CALL + INPUT * 5 + gpu.graph_replay_us + device_us)
    assert both.host_us == pytest.approx(sum(entries_us(report)) + 3 * gpu.graph_replay_us)
