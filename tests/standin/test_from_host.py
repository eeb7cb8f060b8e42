"""Numbers, lists and arrays that go from Python to the GPU, as CUDA takes them."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

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


def put(x, index, value=1.0):
    x[index] = value


@pytest.mark.parametrize(
    ("index", "calls"),
    [
        ([0, 1], ["lift_fresh", "lift_fresh", "index_put_"]),
        ((0, [0, 1]), ["lift_fresh", "select.int", "lift_fresh", "index_put_"]),
        (0, ["lift_fresh", "select.int", "fill_.Tensor"]),
        (slice(0, 1), ["lift_fresh", "slice.Tensor", "fill_.Tensor"]),
    ],
)
def test_a_number_is_assigned_from_the_host(gpu, index, calls):
    x = torch.zeros(2, 3, device="cuda")
    assert names(gpu, lambda: put(x, index)) == calls
    number, *_ = recorded(gpu, lambda: put(x, index))
    assert number.args[0] == ("tensor", [], [], "float32", "cpu")


def test_numbers_assigned_are_known(gpu):
    x = torch.zeros(4, dtype=torch.int64, device="cuda")
    put(x, 0, 5)
    put(x, [1, 2], 2.7)
    put(x, x == 0, True)
    assert x.tolist() == [5, 2, 2, 1]


@pytest.mark.filterwarnings("ignore:.*torch.cuda.\\*DtypeTensor")
def test_older_constructors(gpu):
    assert names(gpu, lambda: torch.cuda.FloatTensor([1.0, 2.0])) == ["lift_fresh"]
    assert names(gpu, lambda: torch.cuda.LongTensor(2, 3)) == ["empty.memory_format"]
    x = torch.cuda.HalfTensor(torch.zeros(2))
    assert isinstance(x, torch.cuda.HalfTensor)
    assert not isinstance(x, torch.cuda.FloatTensor)
    assert x.type(torch.cuda.LongTensor).dtype == torch.int64


def test_reading_values_on_the_host(gpu):
    x = torch.arange(3, device="cuda")
    assert names(gpu, lambda: x.cpu().numpy()) == ["_to_copy", "detach"]
    assert names(gpu, lambda: x.tolist()) == ["_to_copy"]
    with pytest.raises(RuntimeError, match="requires grad"):
        torch.ones(2, requires_grad=True).numpy()


def test_wrapping_a_parameter_is_no_call(gpu):
    calls = names(gpu, lambda: torch.nn.Linear(2, 3, device="cuda").half())
    assert calls == ["empty.memory_format"] * 2 + ["uniform_"] * 2 + ["_to_copy"] * 2
    weight = torch.nn.Parameter(torch.zeros(2, device="cuda"), requires_grad=False)
    assert isinstance(weight, torch.nn.Parameter)
    assert not weight.requires_grad
    layer = torch.nn.Linear(2, 2, device="cuda")
    layer(torch.ones(1, 2, device="cuda")).sum().backward()
    assert names(gpu, lambda: copy.deepcopy(layer)) == ["detach", "clone"] * 2
    assert copy.deepcopy(layer).weight.grad is None


def test_one_hot_scatters(gpu):
    x = torch.arange(3, device="cuda")
    assert names(gpu, lambda: F.one_hot(x, 4)) == ["zeros", "unsqueeze", "scatter_.value"]
    assert F.one_hot(x).tolist() == torch.eye(3, dtype=torch.int64).tolist()


def test_layer_norms_gradient_is_contiguous(gpu):
    x = torch.randn(2, 8, 4, device="cuda").transpose(1, 2).requires_grad_()
    calls = recorded(gpu, lambda: F.layer_norm(x, (8,)).sum().backward())
    (backward,) = [c for c in calls if c.op == "aten.native_layer_norm_backward.default"]
    assert backward.out[0][2] == [32, 8, 1]
    assert backward.out[1:] == [None, None]


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 64), (torch.float64, 64), (torch.bfloat16, 64)])
def test_a_boolean_mask_becomes_additive(gpu, dtype, width):
    q = torch.randn(2, 4, 8, width, device="cuda", dtype=dtype)
    mask = torch.ones(8, 8, dtype=torch.bool, device="cuda")
    calls = names(gpu, lambda: F.scaled_dot_product_attention(q, q, q, attn_mask=mask))
    cudnn = ["scalar_tensor", "logical_not", "scalar_tensor", "where.self"]
    others = ["scalar_tensor", "scalar_tensor", "where.self"]
    begins = cudnn if dtype == torch.bfloat16 else others
    assert calls[: len(begins)] == begins


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
