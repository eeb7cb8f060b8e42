"""Tensors of the GPU that a program prints: what is shown, and the calls that show it."""

import pytest
import torch
from torch import nn

from optrace.tracing.standin import standin
from tests.standin.recording import names

READ = "_local_scalar_dense"


@pytest.mark.parametrize(
    "made",
    [
        lambda device: torch.arange(3, device=device),
        lambda device: torch.full((2, 3), 2.5, device=device),
        lambda device: torch.tensor([[1.0, -2.25], [1e6, 3.0]], device=device),
        lambda device: torch.ones(2000, device=device).view(2, 1000),  # summarized
        lambda device: torch.tensor([True, False], device=device),
        lambda device: torch.tensor(1 + 2j, device=device),
        lambda device: torch.zeros(0, device=device),
    ],
)
def test_what_is_known_is_printed_as_on_the_gpu(made):
    on_the_cpu = repr(made("cpu"))
    with standin() as gpu:
        assert repr(made("cuda")) == on_the_cpu[:-1] + ", device='cuda:0')"
        assert not gpu.guesses


def test_what_torch_says_beside_the_contents():
    with standin(values="all"):
        layer = nn.Linear(1, 1, bias=False, device="cuda")
        nn.init.ones_(layer.weight)
        assert repr(layer.weight) == (
            "Parameter containing:\ntensor([[1.]], device='cuda:0', requires_grad=True)"
        )
        loss = layer(torch.full((2, 1), 3.0, device="cuda")).sum()
        assert repr(loss) == "tensor(6., device='cuda:0', grad_fn=<SumBackward0>)"
        assert repr(loss.detach().half()) == "tensor(6., device='cuda:0', dtype=torch.float16)"
        assert str(loss) == repr(loss)


def test_printing_is_calls_and_waits(gpu):
    x = torch.tensor([2.5, 0.0, 1.5], device="cuda")
    calls = names(gpu, lambda: repr(x))
    # Which numbers are finite and not zero; the smallest and largest of those two; whether each is whole.
    assert calls.count("masked_select") == 1
    assert {"min", "max", "ceil", READ} < set(calls)
    assert calls.count(READ) >= 2


def test_values_that_nobody_knows_are_taken_for_zeros_and_said_to_be(gpu):
    x = torch.randn(4, device="cuda")
    calls = names(gpu, lambda: repr(x))
    assert "masked_select" in calls
    assert "ceil" not in calls  # nothing is left to look at
    assert repr(x) == "FakeTensor(..., device='cuda:0', size=(4,))"
    assert {str(guess).partition(" (")[0] for guess in gpu.guesses} == {
        "a tensor whose values follow from data is printed"
    }
    assert repr(torch.ones(1, device="cuda")) == "tensor([1.], device='cuda:0')"


def test_tensors_of_the_host_are_printed_without_a_call(gpu):
    assert names(gpu, lambda: repr(torch.randn(4))) == ["randn"]


def test_printing_is_torchs_own_again_afterwards():
    before = torch._tensor_str._str
    with standin():
        assert torch._tensor_str._str is not before
    assert torch._tensor_str._str is before
