"""The choices that CUDA makes and other devices do not."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from optrace.tracing.standin import StandinDevice
from optrace.tracing.standin.attention import Query, choose, rules
from tests.standin.recording import names, recorded

H200, A100, V100 = StandinDevice(), StandinDevice("A100", (8, 0), 108), StandinDevice("V100", (7, 0), 80)
CUDNN, FLASH, EFFICIENT, MATH = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)
T211, T214 = rules((2, 11), 91900), rules((2, 14), 92400)
HALF, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


def heads(count, length, width, dtype):
    return torch.empty(2, count, length, width, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("device", "rule", "dtype", "width", "changes", "want"),
    [
        (H200, T211, BF16, 64, {}, CUDNN),
        (H200, T211, BF16, 256, {}, CUDNN),
        (H200, T211, F32, 64, {}, EFFICIENT),
        (H200, T211, F64, 64, {}, MATH),
        (H200, T211, BF16, 60, {}, FLASH),  # cuDNN wants multiples of 8
        (H200, T211, BF16, 64, {"dropout": 0.1}, CUDNN),
        (H200, T214, BF16, 64, {"dropout": 0.1}, FLASH),  # no multiple of 1/16
        (H200, T214, BF16, 64, {"dropout": 0.125}, CUDNN),
        (H200, T211, BF16, 64, {"mask": (16, 16)}, CUDNN),
        (A100, T211, BF16, 64, {}, FLASH),
        (A100, T211, BF16, 64, {"mask": (16, 16)}, EFFICIENT),
        (A100, T211, BF16, 512, {}, EFFICIENT),
        (V100, T211, HALF, 64, {}, EFFICIENT),
        (V100, T211, BF16, 64, {}, MATH),
        (H200, T211, F32, 64, {"kv_heads": 2, "gqa": True}, MATH),
        (H200, T214, F32, 64, {"kv_heads": 2, "gqa": True}, EFFICIENT),
        (H200, T211, F32, 30, {}, MATH),  # the memory-efficient kernel wants multiples of 4
        (A100, T211, BF16, 64, {"causal": True, "kv_length": 32}, EFFICIENT),
    ],
)
def test_attention_backend(device, rule, dtype, width, changes, want):
    kv = heads(changes.get("kv_heads", 4), changes.get("kv_length", 16), width, dtype)
    mask = torch.empty(changes["mask"], dtype=dtype, device="meta") if "mask" in changes else None
    query = Query(
        heads(4, 16, width, dtype),
        kv,
        kv,
        mask,
        changes.get("dropout", 0.0),
        changes.get("causal", False),
        changes.get("gqa", False),
    )
    assert choose(query, device, rule) is want


@pytest.mark.parametrize(
    ("backend", "op"),
    [
        (CUDNN, "_scaled_dot_product_cudnn_attention"),
        (FLASH, "_scaled_dot_product_flash_attention"),
        (EFFICIENT, "_scaled_dot_product_efficient_attention"),
        (MATH, "_safe_softmax"),
    ],
)
def test_forced_attention_backend_and_its_backward(gpu, backend, op):
    q = torch.randn(2, 4, 16, 64, dtype=BF16, device="cuda", requires_grad=True)
    with sdpa_kernel(backend):
        calls = names(gpu, lambda: F.scaled_dot_product_attention(q, q, q).sum().backward())
    assert op in calls
    if backend is not MATH:
        assert f"{op}_backward" in calls


def test_no_attention_backend_left(gpu):
    q = torch.randn(2, 4, 16, 64, device="cuda")
    with sdpa_kernel(FLASH), pytest.raises(RuntimeError, match="No available kernel"):
        F.scaled_dot_product_attention(q, q, q)


@pytest.mark.parametrize(
    ("dtype", "affine", "training", "op"),
    [
        (F32, True, True, "cudnn_batch_norm"),
        (F32, True, False, "cudnn_batch_norm"),
        (F32, False, True, "native_batch_norm"),
        (BF16, True, True, "native_batch_norm"),
        (HALF, True, True, "native_batch_norm"),  # half weights; float weights go to cuDNN
    ],
)
def test_batch_norm_kernel(gpu, dtype, affine, training, op):
    norm = nn.BatchNorm2d(3, affine=affine, device="cuda", dtype=dtype).train(training)
    x = torch.randn(2, 3, 4, 4, device="cuda", dtype=dtype)
    assert op in names(gpu, lambda: norm(x))


def test_channels_last_reaches_the_output(gpu):
    conv = nn.Conv2d(3, 8, 3).cuda().to(memory_format=torch.channels_last)
    y = conv(torch.randn(2, 3, 8, 8, device="cuda"))
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_softmax_of_half_to_float_is_one_kernel(gpu):
    x = torch.randn(2, 3, dtype=HALF, device="cuda")
    assert names(gpu, lambda: x.softmax(-1, dtype=F32)) == ["_softmax"]
    assert names(gpu, lambda: x.bfloat16().softmax(-1, dtype=F32))[-2:] == ["_to_copy", "_softmax"]


def test_silu_backward_is_not_decomposed(gpu):
    x = torch.randn(3, device="cuda", requires_grad=True)
    assert "silu_backward" in names(gpu, lambda: F.silu(x).sum().backward())


def test_rms_norm_is_fused(gpu):
    norm, x = nn.RMSNorm(8, device="cuda"), torch.randn(2, 8, device="cuda")
    assert "_fused_rms_norm" in names(gpu, lambda: norm(x))


def test_grid_sample_with_aligned_corners_goes_to_cudnn(gpu):
    x, grid = torch.randn(1, 3, 8, 8, device="cuda"), torch.randn(1, 4, 4, 2, device="cuda")
    assert names(gpu, lambda: F.grid_sample(x, grid, align_corners=True)) == ["cudnn_grid_sampler"]
    assert names(gpu, lambda: F.grid_sample(x, grid, align_corners=False)) == ["grid_sampler_2d"]


def test_encoder_takes_its_fast_path_at_inference(gpu):
    layer = nn.TransformerEncoderLayer(16, 4, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda().eval()
    x = torch.randn(2, 5, 16, device="cuda")
    with torch.no_grad():
        assert names(gpu, lambda: encoder(x)) == ["_transformer_encoder_layer_fwd"] * 2


def test_packed_sequences(gpu):
    lstm = nn.LSTM(3, 4, bidirectional=True).cuda()
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 3, device="cuda"), torch.tensor([5, 3]))
    assert "_cudnn_rnn" in names(gpu, lambda: lstm(packed))
    out, lengths = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0])
    assert (out.shape, lengths.tolist()) == ((5, 2, 8), [5, 3])


def test_inference_mode_and_decompose_show_cudas_parts(gpu):
    q = torch.randn(2, 4, 16, 64, dtype=BF16, device="cuda")
    attention = torch.ops.aten.scaled_dot_product_attention.default
    with torch.inference_mode():
        assert names(gpu, lambda: F.scaled_dot_product_attention(q, q, q)) == [
            "_scaled_dot_product_cudnn_attention"
        ]
        assert names(gpu, lambda: gpu.decompose(attention, (q, q, q), {})) == [
            "_scaled_dot_product_cudnn_attention"
        ]


@pytest.mark.parametrize("dtype", [BF16, HALF])
def test_autocast_casts_weights_once_and_keeps_norms_in_float(gpu, dtype):
    linear, norm = nn.Linear(4, 4, device="cuda"), nn.LayerNorm(4, device="cuda")
    x = torch.randn(2, 4, device="cuda")
    with torch.autocast("cuda", dtype=dtype):
        calls = recorded(gpu, lambda: norm(linear(linear(x))))
        assert torch.is_autocast_enabled("cuda")
        assert torch.get_autocast_dtype("cuda") is dtype
    casts = [(c.args[0][1], c.out[3]) for c in calls if c.op == "aten._to_copy.default"]
    lower = str(dtype)[6:]
    assert casts == [([4], lower), ([4, 4], lower), ([2, 4], lower), ([2, 4], "float32")]


def test_autocast_disabled_inside_and_off_afterwards(gpu):
    linear, x = nn.Linear(4, 4, device="cuda"), torch.randn(2, 4, device="cuda")
    with torch.autocast("cuda", dtype=BF16), torch.autocast("cuda", enabled=False):
        assert linear(x).dtype == F32
    assert linear(x).dtype == F32
    assert not torch.is_autocast_enabled("cuda")


def test_autocast_leaves_cpu_tensors_alone(gpu):
    with torch.autocast("cuda", dtype=BF16):
        assert (torch.randn(2, 2) @ torch.randn(2, 2)).dtype == F32


def test_autocast_refuses_binary_cross_entropy(gpu):
    p = torch.rand(3, device="cuda")
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
        F.binary_cross_entropy(p, p)


@pytest.mark.parametrize(
    ("make", "op"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), "_foreach_add_.List"),
        (lambda p: torch.optim.SGD(p, lr=0.1, fused=True), "_fused_sgd_"),
        (lambda p: torch.optim.Adam(p, fused=True), "_fused_adam_"),
        (lambda p: torch.optim.AdamW(p), "_foreach_addcdiv_.ScalarList"),
        (lambda p: torch.optim.AdamW(p, foreach=False), "addcdiv_"),
        (lambda p: torch.optim.Adam(p, capturable=True), "_foreach_add_.Scalar"),
    ],
)
def test_optimizer_kernels(gpu, make, op):
    model = nn.Linear(4, 4, device="cuda")
    optimizer = make(model.parameters())
    model(torch.randn(2, 4, device="cuda")).sum().backward()
    optimizer.step()
    assert op in names(gpu, optimizer.step)


def test_clipping_uses_foreach(gpu):
    model = nn.Linear(4, 4, device="cuda")
    model(torch.randn(2, 4, device="cuda")).sum().backward()
    assert "_foreach_norm.Scalar" in names(gpu, lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_runs_the_forward_again(gpu, use_reentrant):
    block = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)).cuda()
    x = torch.randn(2, 4, device="cuda", requires_grad=True)
    calls = names(gpu, lambda: checkpoint(block, x, use_reentrant=use_reentrant).sum().backward())
    assert calls.count("native_dropout") == 2


# torch.func itself scripts functions, which newer versions of torch deprecate
@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_torch_func(gpu):
    x = torch.randn(3, device="cuda")
    f = lambda x: x.sin().square().sum()  # noqa: E731 - the shortest way to say it
    assert torch.func.grad(f)(x).is_cuda
    assert torch.func.hessian(f)(x).shape == (3, 3)
    assert torch.func.vmap(lambda a: a * 2)(x).shape == (3,)


def test_sparse_gradients(gpu):
    bag = nn.EmbeddingBag(10, 4, sparse=True, mode="sum").cuda()
    bag(torch.randint(0, 10, (3, 2), device="cuda")).sum().backward()
    assert bag.weight.grad.layout == torch.sparse_coo


def test_complex_and_fp8(gpu):
    x = torch.randn(4, 4, dtype=torch.complex64, device="cuda", requires_grad=True)
    (x @ x.conj().mT).abs().sum().backward()
    assert x.grad.is_complex()
    a = torch.randn(32, 64, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(32, 64, device="cuda").to(torch.float8_e4m3fn).t()
    one = torch.ones((), device="cuda")
    assert torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=BF16).shape == (32, 32)
