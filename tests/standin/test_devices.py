import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import has_torch_function

from optrace.tracing import open_session
from optrace.tracing.standin import StandinDevice, standin
from tests.standin.recording import names, recorded


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2, device="cuda"),
        lambda: torch.zeros(2, device=torch.device("cuda", 0)),
        lambda: torch.zeros(2, device=0),
        lambda: torch.zeros(2).cuda(),
        lambda: torch.zeros(2).to("cuda:0", non_blocking=True),
        lambda: torch.zeros(2).to(torch.device("cuda"), torch.float64),
        lambda: torch.tensor([1.0, 2.0], device="cuda"),
        lambda: torch.as_tensor([1.0, 2.0], device="cuda"),
        lambda: torch.zeros(2).type("torch.cuda.FloatTensor"),
        lambda: torch.zeros(2, device="cuda").new_tensor([1.0]),
        lambda: torch.zeros_like(torch.zeros(2, device="cuda")),
        lambda: nn.Linear(2, 2, device="cuda").weight,
        lambda: nn.Linear(2, 2).cuda().weight,
        lambda: torch.randn(2, generator=torch.Generator("cuda"), device="cuda"),
    ],
)
def test_user_sees_cuda(gpu, make):
    x = make()
    assert (str(x.device), x.device.type, x.is_cuda, x.get_device()) == ("cuda:0", "cuda", True, 0)
    assert gpu.device_of(x) == "cuda:0"
    assert "cuda:0" in repr(x)


def test_device_context_and_default_device(gpu):
    with torch.device("cuda"):
        assert torch.zeros(2).is_cuda
    torch.set_default_device("cuda")
    try:
        assert torch.ones(2).is_cuda
    finally:
        torch.set_default_device(None)
    assert not torch.zeros(2).is_cuda


def test_what_names_no_device_stays_on_the_cpu_until_placed(gpu):
    model = nn.Linear(2, 2)
    assert gpu.device_of(model.weight) == "cpu"
    assert gpu.place(model).weight.is_cuda
    assert gpu.place({"x": [torch.zeros(2)], "n": 1})["x"][0].is_cuda


def test_nothing_is_placed_without_a_default_device():
    with standin(default_device=None) as gpu:
        assert not gpu.place(torch.zeros(2)).is_cuda


def test_tensor_from_numbers_is_one_call_as_on_a_gpu(gpu):
    (call,) = recorded(gpu, lambda: torch.tensor([1, 2], device="cuda"))
    assert (call.op, call.args[0][4]) == ("aten.lift_fresh.default", "cuda")


def test_copies_between_host_and_device_are_seen(gpu):
    calls = recorded(gpu, lambda: torch.zeros(2).cuda().cpu())
    assert [(c.op, c.out[4]) for c in calls] == [
        ("aten.zeros.default", "cpu"),
        ("aten._to_copy.default", "cuda"),
        ("aten._to_copy.default", "cpu"),
    ]


def test_device_arguments_inside_torch_functions_are_translated(gpu):
    x = torch.randn(2, 3, device="cuda")
    assert F.one_hot(torch.arange(2, device="cuda"), 3).is_cuda
    assert torch.einsum("ij,kj->ik", x, x).is_cuda
    assert nn.MultiheadAttention(4, 2).cuda()(*[torch.randn(3, 1, 4, device="cuda")] * 3)[0].is_cuda


def test_mixing_devices_is_an_error_that_says_cuda(gpu):
    with pytest.raises(RuntimeError, match=r"cuda:0(,| and) cpu"):
        torch.zeros(2, device="cuda") + torch.zeros(2)


def test_deepcopy_of_a_module(gpu):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).cuda()
    copied = copy.deepcopy(model)
    assert copied[0].weight is not model[0].weight
    assert isinstance(copied[0].weight, nn.Parameter)
    assert copied[0].weight.requires_grad
    assert copied[1].running_mean.is_cuda


def test_state_dict_loads(gpu):
    model = nn.Linear(2, 2).cuda()
    model.load_state_dict({k: v.cpu() for k, v in model.state_dict().items()})
    other = nn.Linear(2, 2)
    other.load_state_dict(model.state_dict(), assign=True)
    assert other.weight.is_cuda


def test_data_assignment_moves_a_parameter(gpu):
    model = nn.Linear(2, 2)
    weight = model.weight
    weight.data = weight.data.cuda()
    assert model.weight is weight
    assert weight.is_cuda
    assert weight.requires_grad


def test_lazy_modules_get_their_shape(gpu):
    model = nn.LazyLinear(4).cuda()
    model(torch.randn(2, 7, device="cuda"))
    assert model.weight.shape == (4, 7)
    assert model.weight.is_cuda


def test_random_initialization_is_not_dispatched_while_nobody_records(gpu):
    w = torch.empty(3, 3, device="cuda")
    assert nn.init.trunc_normal_(w) is w
    assert "normal_" in " ".join(names(gpu, lambda: nn.init.kaiming_normal_(w)))


# torch.jit.script is deprecated in newer versions of torch, and still in use
@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_scripted_function_and_eager_compiled_module(gpu):
    @torch.jit.script
    def f(x):
        return torch.relu(x) + torch.zeros(x.shape, device=x.device)

    x = torch.randn(3, device="cuda")
    assert names(gpu, lambda: f(x)) == ["relu", "zeros", "add.Tensor"]


def test_everything_is_restored_after_an_exception():
    before = (torch.cuda.is_available, torch.cuda.Stream, has_torch_function, torch.Tensor.register_hook)
    device = vars(torch._subclasses.fake_tensor.FakeTensor)["device"]
    with pytest.raises(ValueError, match="mine"), standin():
        raise ValueError("mine")
    assert before == (
        torch.cuda.is_available,
        torch.cuda.Stream,
        has_torch_function,
        torch.Tensor.register_hook,
    )
    assert vars(torch._subclasses.fake_tensor.FakeTensor)["device"] is device
    assert type(torch.zeros(1)) is torch.Tensor


def test_a_second_stand_in_is_refused(gpu):
    with pytest.raises(RuntimeError, match="already active"), standin():
        pass


def test_other_gpu_answers_for_itself():
    ada = StandinDevice("NVIDIA GeForce RTX 4090", (8, 9), 128, 25_393_692_672, 75_497_472)
    with standin(ada):
        properties = torch.cuda.get_device_properties(0)
        assert torch.cuda.get_device_capability() == (8, 9)
        assert (properties.name, properties.multi_processor_count) == (ada.name, 128)


def test_a_filler_kept_from_an_earlier_trace_works_in_a_later_one():
    with standin():
        kept = nn.init.trunc_normal_
    with standin():
        w = torch.empty(3, 3, device="cuda")
        assert kept(w) is w
    assert kept(torch.zeros(3, 3)).abs().sum() > 0


def test_a_module_placed_in_an_earlier_trace_trains_in_a_later_one():
    """Its tensors are of the earlier stand-in's mode; the calls are those of a module placed anew."""
    model = nn.Linear(4, 3)
    graphs = []
    for _ in range(2):
        with open_session("fake") as session:
            placed = session.place(model)
            with session.recording():
                placed(torch.ones(2, 4, device="cuda")).sum().backward()
            assert placed.weight.grad.device.type == "cuda"
            placed.zero_grad()
        graphs.append([call.op for call in session.graph])
    assert graphs[0] == graphs[1]
    assert "aten.addmm.default" in graphs[0]


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor])
def test_a_list_of_tensors_becomes_one(make):
    with standin():
        parts = [torch.tensor(1.5, device="cuda", dtype=torch.half), torch.tensor([2.0], device="cuda")]
        assert make(parts).tolist() == [1.5, 2.0]
        assert make([parts, parts], device="cuda").shape == (2, 2)
        assert make(parts[:1]).dtype == torch.half
        assert make([parts[0], 2.0]).dtype == torch.float32
        assert make([1, 2]).dtype == torch.int64
