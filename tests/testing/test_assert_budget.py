from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import optrace
from optrace.diagnosis.budget import BudgetError
from optrace.testing import BudgetWarning, assert_budget


def step(x: torch.Tensor) -> torch.Tensor:
    return (x * 2 + 1).relu()


def longer(x: torch.Tensor) -> torch.Tensor:
    return (x * 2 + 1).relu().neg().neg()


def waits(x: torch.Tensor) -> float:
    return x.sum().item()


def test_within_budget_the_report_is_returned() -> None:
    report = assert_budget(step, torch.ones(1024, 1024), launches=3, syncs=0, hbm_bytes="26 MB")
    assert report.totals["launches"].value == 3
    assert report.graph.info.program == "step"


def test_over_budget_the_message_says_what_adds_most() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_budget(step, torch.ones(8192, 4096), launches=2, syncs=0, hbm_bytes=1024)
    lines = str(caught.value).splitlines()
    assert lines[0] == "over budget: 2 of 3 limits"
    assert lines[1] == "launches: 3, allowed 2: +1 over"
    assert lines[2].startswith("  1  aten.mul.Tensor x1, ")
    assert any("test_assert_budget.py:" in line for line in lines)
    assert any(line.startswith("hbm_bytes: ") and "allowed 1.02 kB" in line for line in lines)


def test_against_a_baseline_it_shows_what_grew(tmp_path: Path) -> None:
    before = assert_budget(step, torch.ones(64), launches=3)
    with pytest.raises(AssertionError) as caught:
        assert_budget(longer, torch.ones(64), launches="baseline", baseline=before)
    over, grew = str(caught.value).splitlines()[1:3]
    assert over == "launches: 5, allowed 3 (baseline 3): +2 over"
    assert grew.startswith("  +2  aten.neg.default x2, ")
    assert grew.endswith(f"test_assert_budget.py:{longer.__code__.co_firstlineno + 1}")
    optrace.render(before, tmp_path / "before.json")
    assert_budget(longer, torch.ones(64), launches="baseline + 70 %", baseline=tmp_path / "before.json")


def test_waits_and_findings() -> None:
    with pytest.raises(AssertionError, match="syncs: 1, allowed 0: \\+1 over"):
        assert_budget(waits, torch.ones(64), syncs=0)
    with pytest.raises(AssertionError, match=r"findings\.sync"):
        assert_budget(waits, torch.ones(64), findings=["sync"])


def test_modules_are_placed_and_held_by_path() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    assert next(model.parameters()).device.type == "cpu"
    assert_budget(model, torch.ones(4, 8), launches=20, modules={"Sequential.*": {"launches": 2}})
    with pytest.raises(AssertionError, match=r"launches of Sequential\.\*"):
        assert_budget(model, torch.ones(4, 8), modules={"Sequential.*": {"launches": 0}})


def test_a_time_only_warns() -> None:
    with pytest.warns(BudgetWarning, match="wall_us: "):
        assert_budget(step, torch.ones(1024), wall_us="1 us")


def test_what_cannot_be_checked() -> None:
    with pytest.raises(ValueError, match="was given no limit"):
        assert_budget(step, torch.ones(4))
    with pytest.raises(BudgetError, match="assert_budget: launches = 'few': expected a number"):
        assert_budget(step, torch.ones(4), launches="few")
    with pytest.raises(BudgetError, match="no baseline was stored for launches"):
        assert_budget(step, torch.ones(4), launches="baseline")


def test_an_error_of_the_function_comes_through() -> None:
    def fails(x: torch.Tensor) -> None:
        raise KeyError("of the function")

    with pytest.raises(KeyError, match="of the function"):
        assert_budget(fails, torch.ones(4, 4), launches=1)


def test_the_fixture(optrace_trace) -> None:
    t = optrace_trace(gpu="h100")
    x = t.place(torch.ones(64))
    x.mul(2)
    assert t.report().totals["launches"].value >= 1
    assert t.report().pricing.gpu.key == "h100"


class Counting(nn.Module):
    """A model on the CPU whose step is a method."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 8))

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def test_a_method_goes_with_its_module_to_the_device() -> None:
    report = assert_budget(Counting().decode, torch.ones(2, 8), launches=1, syncs=0)
    assert [report.graph.facts(call).name for call in range(len(report.graph))] == ["aten.mm.default"]


@pytest.mark.parametrize("warm", [False, True])
def test_an_optimizer_steps_the_copy_of_the_model(warm: bool) -> None:
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, foreach=True)

    def step(model: Counting, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
        model.decode(x).sum().backward()
        optimizer.step()

    if warm:
        step(model, optimizer, torch.ones(2, 8))
        before = model.weight.detach().clone()
    report = assert_budget(step, model, optimizer, torch.ones(2, 8), launches=100)
    phases = {report.graph.facts(call).name for call in range(len(report.graph))}
    assert "aten._foreach_add_.List" in phases
    if warm:
        assert torch.equal(model.weight, before)


def test_a_limit_on_modules_that_nothing_fits_holds_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(
        BudgetError, match=r"nothing that ran fits 'encoder\.\*' \(there were Sequential, Sequential\.0"
    ):
        assert_budget(model, torch.ones(2, 4), modules={"encoder.*": {"launches": 1}})
