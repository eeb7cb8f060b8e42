"""Programs as people write them for a GPU: spellings, placement, attention, precision, modules, guesses."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from optrace.tracing import open_session
from optrace.tracing.standin import standin
from tests.standin.recording import names, recorded

BF16, HALF, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.mark.filterwarnings("ignore:.*torch.cuda.amp")
def test_the_older_spellings_of_amp(gpu):
    linear, x = nn.Linear(4, 4).cuda(), torch.randn(2, 4, device="cuda")
    with torch.cuda.amp.autocast(dtype=BF16):
        assert linear(x).dtype == BF16
    scaler = torch.cuda.amp.GradScaler()
    assert scaler.is_enabled()
    assert scaler.scale(linear(x).sum()).is_cuda


def test_autocast_inside_autocast(gpu):
    x = torch.randn(2, 4, device="cuda")
    # A weight is cast once a context, also for the contexts inside: each dtype gets its own layer, or torch fails.
    lower, half, full = (nn.Linear(4, 4, device="cuda") for _ in range(3))
    with torch.autocast("cuda", dtype=BF16):
        with torch.autocast("cuda", dtype=HALF):
            assert half(x).dtype == HALF
            with torch.autocast("cuda", enabled=False):
                assert full(x).dtype == F32
        assert names(gpu, lambda: lower(x)).count("_to_copy") == 3  # input, weight, bias
        assert names(gpu, lambda: lower(x)).count("_to_copy") == 1
        assert lower(x).dtype == BF16
        with torch.autocast("cpu", dtype=BF16):
            assert (torch.randn(2, 2) @ torch.randn(2, 2)).dtype == BF16
    assert lower(x).dtype == F32


@pytest.mark.filterwarnings("ignore:.*pin_memory.*device")
def test_pinned_memory_and_asynchronous_copies(gpu):
    host = torch.empty(4, pin_memory=True)
    calls = recorded(gpu, lambda: host.to("cuda", non_blocking=True).to("cpu", non_blocking=True))
    assert [(c.op, c.kwargs.get("non_blocking"), c.out[4]) for c in calls] == [
        ("aten._to_copy.default", True, "cuda"),
        ("aten._to_copy.default", True, "cpu"),
    ]


def test_events_and_streams_order_nothing_and_time_nothing(gpu):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    side = torch.cuda.Stream()
    start.record()
    side.wait_event(start)
    with torch.cuda.stream(side):
        torch.zeros(2, device="cuda")
        end.record(side)
    end.wait(torch.cuda.current_stream())
    side.synchronize()
    torch.cuda.synchronize("cuda:0")
    assert start.elapsed_time(end) == 0
    assert torch.cuda.default_stream() == torch.cuda.current_stream() != side


def test_random_state_is_forked_and_put_back(gpu):
    with torch.random.fork_rng(devices=["cuda"]):
        torch.manual_seed(0)
        torch.cuda.manual_seed(0)
        assert torch.rand(2, device="cuda").is_cuda
    states = torch.cuda.get_rng_state_all()
    torch.cuda.set_rng_state_all(states)
    assert len(states) == 1


def test_what_the_program_keeps_on_the_cpu_stays_there(gpu):
    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    model(torch.randn(2, 4, device="cuda")).sum().backward()
    optimizer.step()
    calls = recorded(gpu, optimizer.step)
    steps = [c for c in calls if c.op == "aten.add_.Tensor" and c.args[0][1] == []]
    assert [c.args[0][4] for c in steps] == ["cpu", "cpu"]  # a counter a parameter
    assert gpu.device_of(optimizer.state[model.weight]["step"]) == "cpu"
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    calls = recorded(
        gpu, lambda: torch.randn(4, 4, device="cuda").masked_fill(mask.logical_not().cuda(), 0.0)
    )
    assert [(c.op, c.out[4]) for c in calls[1:3]] == [
        ("aten.logical_not.default", "cpu"),
        ("aten._to_copy.default", "cuda"),
    ]


@pytest.mark.parametrize(("device", "seen"), [("cuda", "cuda:0"), ("cpu", "cpu")])
@pytest.mark.parametrize("mode", ["fake", "cpu"])
def test_a_program_that_names_no_device_is_placed(mode, device, seen):
    with open_session(mode, device=device) as session:
        model, x = session.place(nn.Linear(4, 4)), session.place([torch.randn(2, 4)])
        with session.recording():
            model(*x)
    assert {t.device for node in session.graph for t in (*node.inputs, *node.outputs)} == {seen}


@pytest.mark.parametrize(("kv_heads", "op"), [(2, "cudnn"), (8, "cudnn"), (1, "cudnn")])
def test_grouped_queries_and_their_backward(gpu, kv_heads, op):
    q = torch.randn(2, 8, 32, 64, device="cuda", dtype=BF16, requires_grad=True)
    kv = torch.randn(2, kv_heads, 32, 64, device="cuda", dtype=BF16, requires_grad=True)
    calls = names(gpu, lambda: F.scaled_dot_product_attention(q, kv, kv, enable_gqa=True).sum().backward())
    assert f"_scaled_dot_product_{op}_attention" in calls
    assert f"_scaled_dot_product_{op}_attention_backward" in calls
    assert kv.grad.shape == kv.shape


def test_attention_under_vmap(gpu):
    q = torch.randn(3, 2, 8, 16, 64, device="cuda", dtype=BF16)
    out = torch.func.vmap(lambda q: F.scaled_dot_product_attention(q, q, q))(q)
    assert out.shape == q.shape
    assert out.is_cuda


@pytest.mark.parametrize(
    ("make", "op"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, foreach=False), "add_.Tensor"),
        (lambda p: torch.optim.Adam(p), "_foreach_addcdiv_.ScalarList"),
        (lambda p: torch.optim.Adam(p, foreach=False), "addcdiv_"),
        (lambda p: torch.optim.AdamW(p, fused=True), "_fused_adamw_"),
        (lambda p: torch.optim.Adafactor(p, foreach=True), "_foreach_rsqrt_"),
    ],
)
def test_further_optimizer_kernels(make, op):
    with standin(assume="zero") as gpu:
        model = nn.Linear(4, 4, device="cuda")
        optimizer = make(model.parameters())
        model(torch.randn(2, 4, device="cuda")).sum().backward()
        optimizer.step()
        assert op in names(gpu, optimizer.step)


def test_clipping_by_value(gpu):
    model = nn.Linear(4, 4, device="cuda")
    model(torch.randn(2, 4, device="cuda")).sum().backward()
    calls = names(gpu, lambda: nn.utils.clip_grad_value_(model.parameters(), 1.0))
    assert calls == ["_foreach_clamp_min_.Scalar", "_foreach_clamp_max_.Scalar"]


@pytest.mark.parametrize("inference", [torch.no_grad, torch.inference_mode])
def test_inference_leaves_no_graph_and_dispatches_the_same(inference):
    model_of = lambda: nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4))  # noqa: E731
    with open_session("fake") as session:
        model, x = model_of().cuda(), torch.randn(2, 4, device="cuda")
        with session.recording(), inference():
            assert not model(x).requires_grad
    assert [node.op for node in session.graph if not node.is_view] == [
        "aten.addmm.default",
        "aten.gelu.default",
        "aten.native_layer_norm.default",
    ]


def test_modules_converted_in_every_way(gpu):
    with torch.device("meta"):
        empty = nn.Linear(4, 4)
    assert empty.to_empty(device="cuda").weight.is_cuda
    by_hand = nn.Linear(4, 4)._apply(lambda t: t.cuda())
    assert by_hand.weight.is_cuda
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    weight = model[0].weight
    model.to("cuda", BF16).to(memory_format=torch.channels_last)
    assert model[0].weight is weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert (model[1].running_mean.dtype, model[1].num_batches_tracked.dtype) == (BF16, torch.int64)
    assert model.cpu().double()[1].running_var.dtype == torch.float64


@pytest.mark.parametrize("assume", ["zero", "worst"])
def test_each_guess_marks_the_graph_partial(assume):
    with open_session("fake", assume=assume) as session:
        x = torch.randn(3, device="cuda")
        with session.recording():
            for _ in range(2):
                x.sum().item()
            x[x > 0] + 1
    found = 0 if assume == "zero" else 3
    assert session.graph.info.incomplete == (
        "guess: aten._local_scalar_dense.default was told 0.0 (2 times)",
        f"guess: aten.index.Tensor was told [{found}, 1]",
    )
