"""Numbers, lists and arrays that go from Python to the GPU, as CUDA takes them."""

import numpy as np
import pytest
import torch

from optrace.tracing.standin import standin
from tests.standin.recording import names, recorded


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.tensor([1, 2], device="cuda"),
        lambda x: torch.tensor(2.5, device="cuda"),
        lambda x: torch.as_tensor([1.0, 2.0], device="cuda"),
        lambda x: torch.asarray([1.0, 2.0], device="cuda"),
        lambda x: x.new_tensor([1, 2]),
        lambda x: x.new([1.0, 2.0]),
    ],
)
def test_numbers_are_copied_unseen_and_lifted_once(gpu, make):
    x = torch.zeros(3, device="cuda")
    (call,) = recorded(gpu, lambda: make(x))
    assert call.op == "aten.lift_fresh.default"
    assert call.args[0][4] == "cuda"


def test_an_array_is_lifted_on_the_host_and_then_copied(gpu):
    array = np.array([1.0, 2.0])
    for make in (torch.tensor, torch.as_tensor):
        calls = recorded(gpu, lambda make=make: make(array, device="cuda"))
        assert [(c.op, c.args[0][4]) for c in calls] == [
            ("aten.lift_fresh.default", "cpu"),
            ("aten._to_copy.default", "cpu"),
        ]


@pytest.mark.parametrize(
    ("index", "lifts"),
    [
        ([0, 1], 1),
        ((..., [-2], slice(None)), 1),
        ((slice(None), [True, False, True]), 1),
        (([0, 1], [1, 2]), 2),
        (range(2), 1),
    ],
)
def test_a_list_as_an_index_is_lifted_on_the_gpu(gpu, index, lifts):
    x = torch.randn(2, 3, 4, device="cuda")
    calls = recorded(gpu, lambda: x[index])
    assert [c.op for c in calls] == ["aten.lift_fresh.default"] * lifts + ["aten.index.Tensor"]
    assert {c.args[0][4] for c in calls} == {"cuda"}


def test_a_list_as_an_index_of_a_host_tensor_stays_on_the_host(gpu):
    x = torch.randn(2, 3)
    assert {c.args[0][4] for c in recorded(gpu, lambda: x[[0, 1]])} == {"cpu"}


def test_assignment_makes_its_value_first_and_its_index_where_it_stands(gpu):
    x = torch.zeros(2, 3, device="cuda")

    def put(index):
        x[index] = 1.0

    assert names(gpu, lambda: put([0, 1])) == ["scalar_tensor", "lift_fresh", "index_put_"]
    assert names(gpu, lambda: put((0, [0, 1]))) == ["scalar_tensor", "select.int", "lift_fresh", "index_put_"]


@pytest.mark.parametrize("values", ["small", "all"])
def test_values_are_known_afterwards(values):
    with standin(values=values):
        assert torch.tensor([[1, 2], [3, 4]], device="cuda").tolist() == [[1, 2], [3, 4]]
        assert torch.tensor([1.5], device="cuda", dtype=torch.bfloat16).item() == 1.5
        assert torch.arange(6, device="cuda")[[4, 1]].tolist() == [4, 1]
        assert torch.tensor([1.0], device="cuda", requires_grad=True).requires_grad


def test_torch_lifts_as_before_afterwards():
    before = torch._C._only_lift_cpu_tensors()
    with standin():
        torch.zeros(2, device="cuda") + 1
        assert not torch._C._only_lift_cpu_tensors()
    assert torch._C._only_lift_cpu_tensors() == before
