"""Contents of all tensors: programs compute on the pretended GPU what they compute on the CPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from optrace.tracing import open_session
from optrace.tracing.standin import UnknownValueError, standin
from tests.standin.recording import recorded


@pytest.fixture
def gpu():
    with standin(values="all") as active:
        yield active


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


def block():
    return nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)


PROGRAMS = {
    "cnn": (cnn, (4, 3, 8, 8)),
    "transformer block": (block, (2, 5, 16)),
    "lstm": (Lstm, (2, 5, 8)),
    "rms norm": (lambda: nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8)), (3, 8)),
    "group norm": (lambda: nn.Sequential(nn.Conv1d(4, 4, 3), nn.GroupNorm(2, 4)), (3, 4, 8)),
}
OPTIMIZERS = {
    "foreach AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-3),
    "fused AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-3, fused=True),
}


def train(make, shape, device, optimizer="foreach AdamW"):
    """The losses of three steps and the weights after them."""
    torch.manual_seed(0)
    model = make().to(device)
    update, losses = OPTIMIZERS[optimizer](model.parameters()), []
    for _ in range(3):
        out = model(torch.randn(shape).to(device))
        loss = (out - torch.randn(out.shape).to(device)).square().mean()
        update.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update.step()
        losses.append(loss.item())
    state = model.state_dict().values()
    return losses, [t.double().cpu().flatten().tolist() for t in state]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_training_gives_what_the_cpu_gives(program, optimizer):
    losses, weights = train(*PROGRAMS[program], "cpu", optimizer)
    with standin(values="all"):
        found, found_weights = train(*PROGRAMS[program], "cuda", optimizer)
    assert found == pytest.approx(losses, rel=1e-5)
    for w, f in zip(weights, found_weights, strict=True):
        assert f == pytest.approx(w, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_calls_are_those_of_a_trace_without_contents(program):
    calls = []
    for values in ("small", "all"):
        with standin(values=values) as gpu:
            make, shape = PROGRAMS[program]
            model, x = make().cuda(), torch.randn(shape, device="cuda")
            optimizer = torch.optim.AdamW(model.parameters())

            def step(model=model, x=x, optimizer=optimizer):
                model(x).sum().backward()
                optimizer.step()

            step()
            calls.append([(c.op, c.args, c.out) for c in recorded(gpu, step)])
    assert calls[0] == calls[1]


@pytest.mark.parametrize(
    "backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
)
@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_and_its_gradients(backend, causal):
    def run(device):
        torch.manual_seed(0)
        inputs = [torch.randn(2, 4, 9, 16, dtype=torch.bfloat16).to(device).requires_grad_() for _ in "qkv"]
        with sdpa_kernel(backend if device == "cuda" else SDPBackend.MATH):
            F.scaled_dot_product_attention(*inputs, is_causal=causal).float().square().sum().backward()
        return [x for t in inputs for x in t.grad.float().flatten().tolist()]

    want = run("cpu")
    with standin(values="all"):
        assert run("cuda") == pytest.approx(want, abs=0.1)


def test_attention_draws_one_dropout_mask_for_forward_and_backward(gpu):
    v = torch.ones(1, 1, 8, 8, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    q = torch.zeros(1, 1, 8, 8, device="cuda", dtype=torch.bfloat16)
    out = F.scaled_dot_product_attention(q, q, v, dropout_p=0.5)
    out.sum().backward()
    assert v.grad.sum().item() == pytest.approx(out.sum().item(), rel=0.02)  # the sum is linear in v
    assert len(set(out[..., 0].flatten().tolist())) > 1


def test_a_mask_of_attention_may_hide_a_whole_row(gpu):
    q = torch.randn(1, 1, 8, 8, device="cuda")
    mask = torch.zeros(8, 8, dtype=torch.bool, device="cuda")
    assert F.scaled_dot_product_attention(q, q, q, attn_mask=mask).abs().sum().item() == 0


def test_cells_give_what_the_cpu_gives():
    def run(device):
        torch.manual_seed(0)
        values = []
        for cell in (nn.LSTMCell(3, 4).to(device), nn.GRUCell(3, 4).to(device)):
            x = torch.randn(2, 3).to(device)
            out = cell(x)
            out = cell(x, out)
            (out[1] if isinstance(out, tuple) else out).sum().backward()
            values += [v for p in cell.parameters() for v in p.grad.flatten().tolist()]
        return values

    want = run("cpu")
    with standin(values="all"):
        assert run("cuda") == pytest.approx(want, rel=1e-4, abs=1e-6)


def test_a_loop_until_convergence_ends(gpu):
    x = torch.full((3,), 8.0, device="cuda", requires_grad=True)
    steps = 0
    while (loss := x.square().sum()) > 1e-3:
        (grad,) = torch.autograd.grad(loss, x)
        with torch.no_grad():
            x -= 0.25 * grad
        steps += 1
    assert steps == 9  # 192 / 4^9 < 1e-3 < 192 / 4^8
    assert gpu.guesses == []


def test_a_computed_mask_selects_its_true_number(gpu):
    x = torch.randn(1000, device="cuda")
    mask = x > 0
    assert x[mask].shape == x[mask].clamp_min(0).shape == (int(mask.sum()),)
    assert x[mask].min().item() > 0
    assert torch.nonzero(mask).shape == (int(mask.sum()), 1)


def test_large_tensors_views_and_writes_are_exact(gpu):
    x = torch.arange(200_000, device="cuda")
    x.view(400, 500)[1:3].zero_()
    x[0] = 7
    torch.add(x[:10], 1, out=x[10:20])
    assert x[[0, 1, 10, 11, 499, 500, 1499, 1500]].tolist() == [7, 1, 8, 2, 499, 0, 0, 1500]
    z = torch.complex(x[:2].float(), x[:2].float()).conj()
    assert (z * 1j).tolist() == [7 + 7j, 1 + 1j]


def test_random_numbers_follow_the_seed(gpu):
    def draw():
        torch.manual_seed(3)
        return [torch.randn(2, device="cuda").tolist(), F.dropout(torch.ones(64, device="cuda")).tolist()]

    assert draw() == draw()
    assert set(draw()[1]) == {0.0, 2.0}


def test_parameters_are_really_initialized_and_loaded_ones_keep_their_contents():
    made_before = nn.Linear(2, 2)
    want = made_before.weight.tolist()
    with standin(values="all"):
        assert nn.Linear(100, 100).cuda().weight.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.1)
        assert nn.init.trunc_normal_(torch.empty(1000, device="cuda")).abs().max().item() <= 2
        assert made_before.cuda().weight.tolist() == want
        other = nn.Linear(2, 2, device="cuda")
        other.load_state_dict(made_before.state_dict())
        assert other.weight.tolist() == want


def test_a_real_tensor_from_outside_is_written_in_place():
    outside = torch.zeros(3)
    with standin(values="all"):
        outside.add_(1)
    assert outside.tolist() == [1, 1, 1]


def test_fp8_products(gpu):
    a, b = torch.randn(32, 64, device="cuda"), torch.randn(16, 64, device="cuda")
    half, one = torch.float8_e4m3fn, torch.ones((), device="cuda")
    product = torch._scaled_mm(
        a.to(half), b.to(half).t(), scale_a=one, scale_b=2 * one, out_dtype=torch.bfloat16
    )
    exact = a.to(half).float() @ b.to(half).float().t() * 2
    assert ((product.float() - exact).norm() / exact.norm()).item() < 1e-2


def test_gradient_scaling_knows_overflow(gpu):
    model = nn.Linear(4, 4, device="cuda")
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    before = model.weight.tolist()
    scaler.scale(model(torch.full((1, 4), float("inf"), device="cuda")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert model.weight.tolist() == before
    assert scaler.get_scale() == 2.0**15
    assert gpu.guesses == []


def test_an_op_that_the_cpu_lacks_is_named_when_its_result_is_asked_for(gpu):
    @torch.library.custom_op("standin_test::gpu_only", mutates_args=(), device_types="cuda")
    def gpu_only(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    gpu_only.register_fake(torch.empty_like)
    total = (gpu_only(torch.ones(2, device="cuda")) + 1).sum()
    with pytest.raises(UnknownValueError, match=r"follows from standin_test\.gpu_only\.default"):
        total.item()


def test_memory_is_given_back(gpu):
    from optrace.tracing.standin import contents

    x = torch.zeros(1 << 18, device="cuda")
    mode = x.fake_mode
    for _ in range(3 * contents.SWEEP_BYTES >> 20):
        x = x + 1
    held = {id(entry[1]): entry[1].nbytes() for entry in mode.values._known.values()}
    assert sum(held.values()) < 2 * contents.SWEEP_BYTES
    assert x[-1].item() == 192


def test_cpu_mode_records_cudas_calls_with_real_values():
    with open_session("cpu") as session:
        model = session.place(cnn())
        x = torch.ones(2, 3, 8, 8, device="cuda")
        with session.recording():
            loss = model(x).sum()
        assert isinstance(loss.item(), float)
    assert "aten.cudnn_batch_norm.default" in [node.op for node in session.graph]
    assert {t.device for node in session.graph for t in node.inputs} == {"cuda:0"}


def test_cpu_mode_on_the_cpu_records_the_cpus_own_calls():
    with open_session("cpu", device="cpu") as session:
        model = session.place(cnn())
        with session.recording():
            model(torch.ones(2, 3, 8, 8))
    assert "aten.native_batch_norm.default" in [node.op for node in session.graph]
    assert {t.device for node in session.graph for t in node.inputs} == {"cpu"}
