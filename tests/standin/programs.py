"""Recorded programs that need nothing but torch: each builds on a device and returns its step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[], Any]
Build = Callable[[str], Step]


def _infer(make: Callable[[], nn.Module], inputs: Callable[[str], list[Tensor]], dtype: Any = None) -> Build:
    def build(device: str) -> Step:
        with torch.device(device):
            model = make()
        model = model.eval()
        if dtype is not None:
            model = model.to(dtype)
        given = inputs(device)

        def step() -> Any:
            with torch.no_grad():
                return model(*given)

        return step

    return build


def _train(
    make: Callable[[], nn.Module],
    inputs: Callable[[str], list[Tensor]],
    loss: Callable[[Tensor], Tensor] = lambda y: y.float().square().mean(),
    autocast: torch.dtype | None = None,
    **adamw: Any,
) -> Build:
    def build(device: str) -> Step:
        with torch.device(device):
            model = make()
        model = model.train()
        given = inputs(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **adamw)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
                value = loss(model(*given))
            value.backward()
            optimizer.step()

        return step

    return build


def _toy(shape: tuple[int, ...], width: int, dtype: torch.dtype, repeats: int = 1) -> Build:
    def build(device: str) -> Step:
        x = torch.randn(*shape, width, device=device, dtype=dtype)
        w = torch.randn(width, width, device=device, dtype=dtype)
        b = torch.randn(width, device=device, dtype=dtype)

        def step() -> Tensor:
            with torch.no_grad():
                y = x
                for _ in range(repeats):
                    y = y + F.dropout(F.gelu(y @ w + b), 0.1)
                return y

        return step

    return build


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def _class_zero(y: Tensor) -> Tensor:
    return F.cross_entropy(y, torch.zeros(y.shape[0], dtype=torch.long, device=y.device))


class _Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10000, 256)
        self.lstm = nn.LSTM(256, 512, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(512, 10000)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(x))[0])


class _Dlrm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(100000, 64, mode="sum") for _ in range(26))
        self.bottom = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU()
        )
        self.top = nn.Sequential(
            nn.Linear(64 + 27 * 26 // 2, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )
        i, j = torch.tril_indices(27, 27, -1)
        self.register_buffer("i", i)
        self.register_buffer("j", j)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        rows = torch.stack([x] + [table(sparse[:, k]) for k, table in enumerate(self.tables)], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))
        return self.top(torch.cat([x, products[:, self.i, self.j]], 1))


class _Gcn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(128, 256)
        self.b = nn.Linear(256, 40)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        for layer in (self.a, self.b):
            x = layer(x)
            x = torch.zeros_like(x).index_add_(0, target, x[source]).relu()
        return x


class _ItemInLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        total = 0.0
        for _ in range(20):
            x = self.layer(x).tanh()
            total += x.sum().item()
        return x


class _Attention(nn.Module):
    def __init__(self, width: int = 1024, heads: int = 16) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-1, -2)) / (d // self.heads) ** 0.5
        future = torch.ones(t, t, device=x.device, dtype=torch.bool).triu(1)
        a = a.masked_fill(future, float("-inf")).softmax(-1)
        return self.out((a @ v).transpose(1, 2).reshape(b, t, d))


def _block(i: int, o: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1),
        nn.GroupNorm(8, o),
        nn.SiLU(),
        nn.Conv2d(o, o, 3, padding=1),
        nn.GroupNorm(8, o),
        nn.SiLU(),
    )


class _Unet(nn.Module):
    def __init__(self, c: int = 32) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            [_block(3, c), _block(c, 2 * c), _block(2 * c, 4 * c), _block(4 * c, 8 * c)]
        )
        self.up = nn.ModuleList([_block(12 * c, 4 * c), _block(6 * c, 2 * c), _block(3 * c, c)])
        self.out = nn.Conv2d(c, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        kept.pop()
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2, mode="bilinear"), kept.pop()], 1))
        return self.out(x)


def _randn(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[str], list[Tensor]]:
    return lambda device: [torch.randn(*shape, device=device, dtype=dtype)]


PROGRAMS: dict[str, Build] = {
    "toy_big_8x4096x4096_bf16": _toy((8, 4096), 4096, torch.bfloat16),
    "toy_small_8x64_f32_x16": _toy((8,), 64, torch.float32, 16),
    "toy_mid_f32_x4": _toy((2048,), 1024, torch.float32, 4),
    "mlp_train_b64_adamw": _train(_mlp, _randn(64, 784), _class_zero),
    "mlp_train_b64_forloop": _train(_mlp, _randn(64, 784), _class_zero, foreach=False),
    "mlp_train_b8192_fused": _train(_mlp, _randn(8192, 784), _class_zero, fused=True),
    "lstm_train": _train(_Lstm, lambda d: [torch.randint(0, 10000, (32, 64), device=d)]),
    "gru_infer_b1": _infer(lambda: nn.GRU(128, 256, 2, batch_first=True), _randn(1, 100, 128)),
    "dlrm_infer_b2048": _infer(
        _Dlrm,
        lambda d: [torch.randn(2048, 13, device=d), torch.randint(0, 100000, (2048, 26, 4), device=d)],
    ),
    "gcn_train_100k_edges": _train(
        _Gcn,
        lambda d: [
            torch.randn(20000, 128, device=d),
            torch.randint(0, 20000, (100000,), device=d),
            torch.randint(0, 20000, (100000,), device=d),
        ],
    ),
    "item_in_loop": _infer(_ItemInLoop, _randn(64, 256)),
    "naive_attn_infer_bf16": _infer(
        _Attention, _randn(8, 1024, 1024, dtype=torch.bfloat16), dtype=torch.bfloat16
    ),
    "naive_attn_train_autocast": _train(_Attention, _randn(4, 1024, 1024), autocast=torch.bfloat16),
    "unet_infer_b4_256": _infer(_Unet, _randn(4, 3, 256, 256)),
}


def transformers_programs() -> dict[str, Build]:
    """Recorded programs that need transformers; ImportError without it."""
    import transformers

    def make(model: str, config: str, **sizes: Any) -> nn.Module:
        chosen = getattr(transformers, config)(**sizes)
        chosen._attn_implementation = "sdpa"
        return getattr(transformers, model)._from_config(chosen)

    def ids(batch: int, length: int) -> Callable[[str], list[Tensor]]:
        return lambda device: [torch.randint(0, 1000, (batch, length), device=device)]

    return {
        "hf_gpt2_prefill_b1_s512_bf16": _infer(
            lambda: make("GPT2LMHeadModel", "GPT2Config"), ids(1, 512), dtype=torch.bfloat16
        ),
        "hf_distilbert_infer_b1_s64": _infer(lambda: make("DistilBertModel", "DistilBertConfig"), ids(1, 64)),
    }
