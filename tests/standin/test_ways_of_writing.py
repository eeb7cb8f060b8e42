"""Ways in which programs are written: compiled and scripted parts, functional transforms, hooks, rarer optimizers."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from optrace.tracing.standin import UnknownValueError, standin
from tests.standin.recording import names, recorded

# torch.func and jit themselves script functions, which newer versions of torch deprecate
SCRIPTS = pytest.mark.filterwarnings("ignore:.*torch.jit.script")


def activation(x):
    return F.relu(x) * 2


class Model(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.part = part

    def forward(self, x):
        return self.part(self.linear(x))


@SCRIPTS
def test_a_part_compiled_for_eager_calls_what_the_plain_function_calls(gpu):
    def calls(part):
        model, x = Model(part).cuda(), torch.randn(2, 4, device="cuda")
        model(x).sum().backward()  # compiles
        return names(gpu, lambda: model(x).sum().backward())

    assert calls(torch.compile(activation, backend="eager")) == calls(activation)


@SCRIPTS
def test_a_scripted_part_calls_what_the_plain_function_calls(gpu):
    def calls(part):
        model, x = Model(part).cuda(), torch.randn(2, 4, device="cuda")
        with torch.no_grad():  # with gradients, TorchScript differentiates in a way of its own
            return [name.partition(".")[0] for name in names(gpu, lambda: model(x))]  # and picks mul.Scalar

    assert calls(torch.jit.script(activation)) == calls(activation)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_orthogonalizes_in_bfloat16(gpu):
    weight = nn.Parameter(torch.randn(8, 4, device="cuda"))
    optimizer = torch.optim.Muon([weight], lr=0.1)
    weight.grad = torch.randn(8, 4, device="cuda")
    calls = recorded(gpu, optimizer.step)
    products = [c.out[3] for c in calls if c.op in ("aten.mm.default", "aten.addmm.default")]
    assert products == ["bfloat16"] * 15  # five steps of three products


def test_adafactor_needs_a_value_that_follows_from_data():
    def step():
        weight = nn.Parameter(torch.randn(8, 4, device="cuda"))
        weight.grad = torch.randn(8, 4, device="cuda")
        torch.optim.Adafactor([weight], foreach=False).step()

    with standin(), pytest.raises(UnknownValueError):
        step()
    with standin(assume="zero") as gpu:
        assert "rsqrt_" in names(gpu, step)
        assert {g.op for g in gpu.guesses} == {"aten._local_scalar_dense.default"}
    with standin(values="all") as gpu:
        step()
        assert gpu.guesses == []


@SCRIPTS
def test_functional_transforms_of_a_module(gpu):
    model = nn.Linear(3, 2, device="cuda")
    weights = dict(model.named_parameters())
    x = torch.randn(5, 3, device="cuda")

    def loss(weights, x):
        return torch.func.functional_call(model, weights, x).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)
    assert each["weight"].shape == (5, 2, 3)
    assert each["weight"].is_cuda
    jacobian = torch.func.jacrev(lambda x: model(x))(x[0])
    assert jacobian.shape == (2, 3)


def test_hooks_run_where_they_are_hung(gpu):
    model, seen = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).cuda(), []
    model[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model[0].register_forward_hook(lambda module, args, out: out + 1)
    model[1].register_full_backward_hook(
        lambda module, grad_in, grad_out: seen.append(grad_in[0].device.type)
    )
    model[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append(tuple(p.grad.shape)))
    x = torch.randn(2, 4, device="cuda")
    calls = names(gpu, lambda: model(x).sum().backward())
    assert seen == ["cuda", (4, 4)]
    assert [c for c in calls if c in ("mul.Tensor", "addmm", "add.Tensor", "relu")] == [
        "mul.Tensor",
        "addmm",
        "add.Tensor",
        "relu",
    ]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_computes_again_what_the_backward_needs(gpu, use_reentrant):
    linear = nn.Linear(4, 4).cuda()
    x = torch.randn(2, 4, device="cuda", requires_grad=True)
    out = checkpoint(lambda x: linear(x).sin(), x, use_reentrant=use_reentrant)
    calls = names(gpu, lambda: out.sum().backward())
    assert [calls.count(c) for c in ("addmm", "sin", "cos")] == [
        1,
        int(use_reentrant),
        1,
    ]  # the other kind stops early
    assert linear.weight.grad.shape == (4, 4)


def test_complex_tensors_are_multiplied_whole(gpu):
    x = torch.randn(4, 4, dtype=torch.complex64, device="cuda")
    (call,) = recorded(gpu, lambda: x @ x)
    assert (call.op, call.out[3]) == ("aten.mm.default", "complex64")
    assert names(gpu, lambda: torch.fft.rfft(x.real))[-1] == "_fft_r2c"


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags(gpu, mode):
    bag = nn.EmbeddingBag(10, 4, mode=mode).cuda()
    indices, offsets = torch.randint(0, 10, (6,), device="cuda"), torch.tensor([0, 2], device="cuda")
    calls = names(gpu, lambda: bag(indices, offsets).sum().backward())
    assert "_embedding_bag" in calls
    assert "_embedding_bag_backward" in calls
    assert bag.weight.grad.shape == (10, 4)


def test_sparse_gradients_are_applied_sparsely(gpu):
    table = nn.Embedding(10, 4, sparse=True).cuda()
    table(torch.tensor([1, 3], device="cuda")).sum().backward()
    assert table.weight.grad.is_sparse
    plain = torch.optim.SGD(table.parameters(), lr=0.1)
    assert "add_.Tensor" in names(gpu, plain.step)


def test_gradient_scaling_steps_where_nothing_overflows():
    with standin(values="all") as gpu:
        model = nn.Linear(4, 4, device="cuda")
        optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.ones(2, 4, device="cuda")).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = model.weight.tolist()
        scaler.step(optimizer)
        scaler.update()
        assert model.weight.tolist() != before
        assert gpu.guesses == []


@pytest.mark.parametrize("values", ["small", "all"])
def test_lazy_modules_train(values):
    with standin(values=values) as gpu:
        model = nn.Sequential(
            nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2)
        ).cuda()
        x = torch.randn(2, 3, 8, 8, device="cuda")
        model(x)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(x).sum().backward()
        assert "_foreach_add_.List" in names(gpu, optimizer.step)
        assert model[3].weight.shape == (2, 4 * 6 * 6)


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_dict_loads_into_a_copy(assign):
    with standin(values="all"):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).cuda()
        other = copy.deepcopy(model)
        nn.init.ones_(other[0].weight)
        assert model[0].weight.tolist() != other[0].weight.tolist()
        other.load_state_dict(model.state_dict(), assign=assign)
        assert model[0].weight.tolist() == other[0].weight.tolist()


def test_tied_weights_get_one_gradient_also_in_a_copy():
    with standin(values="all"):
        first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        second.weight = first.weight
        model = copy.deepcopy(nn.Sequential(first, second).cuda())
        assert model[0].weight is model[1].weight
        nn.init.ones_(model[0].weight)
        model(torch.ones(1, 2, device="cuda")).sum().backward()
        assert model[0].weight.grad.tolist() == [[4, 4], [4, 4]]  # 2 * (1 + 1), once as input, once as output


def test_inference_mode_takes_the_encoders_fast_path(gpu):
    layer = nn.TransformerEncoderLayer(16, 4, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda().eval()
    x = torch.randn(2, 5, 16, device="cuda")
    with torch.inference_mode():
        assert names(gpu, lambda: encoder(x)) == ["_transformer_encoder_layer_fwd"] * 2
