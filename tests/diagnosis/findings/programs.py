"""For each kind of finding a small program in which it is, and its twin in which it is not.

``PAIRS[kind]`` holds functions ``make(bad) -> step``: tensors and modules are made outside of the step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

Step = Callable[[], object]
Make = Callable[[bool], Step]

PAIRS: dict[str, list[Make]] = {}

BF16 = torch.bfloat16


def pair(kind: str) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        PAIRS.setdefault(kind, []).append(make)
        return make

    return add


def cuda(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def inference(step: Step) -> Step:
    def run() -> object:
        with torch.no_grad():
            return step()

    return run


@pair("sync")
def item_in_a_loop(bad: bool) -> Step:
    layer, x = nn.Linear(64, 64, device="cuda"), cuda(8, 64)

    def step() -> object:
        parts: list[object] = []
        for _ in range(3):
            part = layer(x).sum()
            parts.append(part.item() if bad else part)
        return parts

    return inference(step)


@pair("sync")
def boolean_index(bad: bool) -> Step:
    x = cuda(64, 64)
    return lambda: x[x > 0].sum() if bad else torch.where(x > 0, x, 0.0).sum()


@pair("blocking-copy")
def batch_to_the_gpu(bad: bool) -> Step:
    batch = torch.randn(64, 64, device="cpu")
    pinned = batch.pin_memory()
    return lambda: (batch.to("cuda") if bad else pinned.to("cuda", non_blocking=True)) * 2


@pair("blocking-copy")
def pinned_and_waited_for(bad: bool) -> Step:
    batch, x = torch.randn(64, 64, device="cpu").pin_memory(), cuda(2048, 2048)

    def step() -> object:
        y = x @ x
        copied = batch.to("cuda", non_blocking=not bad)
        for _ in range(8):
            copied = copied * 2
        return copied, y

    return inference(step)


@pair("loop-optimizer")
def adamw(bad: bool) -> Step:
    model = nn.Sequential(*[nn.Linear(32, 32) for _ in range(4)]).cuda()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False, fused=not bad).step


@pair("python-loop")
def recurrence(bad: bool) -> Step:
    cell, whole = nn.GRUCell(32, 32, device="cuda"), nn.GRU(32, 32, device="cuda")
    x = cuda(16, 4, 32)

    def step() -> object:
        if not bad:
            return whole(x)
        h = torch.zeros(4, 32, device="cuda")
        for t in range(16):
            h = cell(x[t], h)
        return h

    return inference(step)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in range(8))
        self.stacked = nn.Parameter(torch.randn(8, 32, 32))

    def forward(self, x: torch.Tensor, bad: bool) -> torch.Tensor:
        if bad:
            return torch.stack([expert(x) for expert in self.experts])
        return torch.einsum("ti,eio->eto", x, self.stacked)


@pair("python-loop")
def experts_one_by_one(bad: bool) -> Step:
    model, x = Experts().cuda(), cuda(4, 32)
    return inference(lambda: model(x, bad))


@pair("python-loop")
def layers_are_no_loop(bad: bool) -> Step:
    """Layers that depend on each other look like a loop; they are none."""
    layers, x = nn.Sequential(*[nn.Linear(32, 32) for _ in range(12)]).cuda(), cuda(4, 32)
    model = Experts().cuda()
    return inference(lambda: model(x, True) if bad else layers(x))


@pair("pointwise-chain")
def gelu_written_out(bad: bool) -> Step:
    x = cuda(4096, 4096, dtype=BF16)

    def step() -> object:
        if bad:
            return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
        return F.gelu(x, approximate="tanh")

    return inference(step)


@pair("pointwise-chain")
def small_tensors_are_no_chain(bad: bool) -> Step:
    x = cuda(4096, 4096, dtype=BF16) if bad else cuda(64, 64)
    return inference(lambda: x * (1 / (1 + torch.exp(-x))))


@pair("slow-elementwise")
def bias_beside_the_product(bad: bool) -> Step:
    x, w, b = cuda(4096, 1024, dtype=BF16), cuda(4096, 1024, dtype=BF16), cuda(4096, dtype=BF16)
    return inference(lambda: x @ w.t() + b if bad else F.linear(x, w, b))


@pair("slow-elementwise")
def mixed_dtypes(bad: bool) -> Step:
    x, y = cuda(4096, 4096, dtype=BF16), cuda(4096, 4096, dtype=torch.float32 if bad else BF16)
    return inference(lambda: x * y)


@pair("layout")
def row_major_convolutions(bad: bool) -> Step:
    format = torch.contiguous_format if bad else torch.channels_last
    model = nn.Conv2d(64, 64, 3, padding=1).to("cuda", BF16, memory_format=format)  # type: ignore[call-overload]
    x = cuda(16, 64, 56, 56, dtype=BF16).to(memory_format=format)
    return inference(lambda: model(x))


@pair("layout")
def row_major_sequences(bad: bool) -> Step:
    """torch has no channels last of one dimension: there is nothing to change."""
    x = cuda(16, 64, 56 * 56, dtype=BF16)
    if bad:
        model: nn.Module = nn.Conv2d(64, 64, 3, padding=1)
        x = x.unflatten(2, (56, 56))
    else:
        model = nn.Conv1d(64, 64, 3, padding=1)
    model = model.to("cuda", BF16)
    return inference(lambda: model(x))


@pair("layout")
def back_and_forth(bad: bool) -> Step:
    norm, x = nn.LayerNorm(64, device="cuda"), cuda(4, 64, 28, 28)
    if not bad:
        x = x.to(memory_format=torch.channels_last)

    def step() -> object:
        y = x.permute(0, 2, 3, 1).contiguous()
        y = norm(y).permute(0, 3, 1, 2)
        return torch.relu(y.contiguous() if bad else y)

    return inference(step)


@pair("redundant-cast")
def there_and_back(bad: bool) -> Step:
    x = cuda(64, 64, dtype=BF16)
    return inference(lambda: torch.relu(x.float().to(BF16) if bad else x))


class Casting(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.to(BF16))


@pair("redundant-cast")
def weight_cast_each_time(bad: bool) -> Step:
    model, x = Casting(torch.float32 if bad else BF16).cuda(), cuda(8, 64, dtype=BF16)
    return inference(lambda: model(x))


@pair("redundant-cast")
def a_cast_with_work_in_between(bad: bool) -> Step:
    x = cuda(64, 64, dtype=BF16)
    return inference(lambda: x.float().to(BF16) + 1 if bad else x.float().softmax(-1).to(BF16))


@pair("tf32-off")
def float32_products(bad: bool) -> Step:
    x, w = (cuda(1024, 1024, dtype=torch.float32 if bad else BF16) for _ in range(2))
    return inference(lambda: x @ w)


@pair("misaligned-matmul")
def odd_vocabulary(bad: bool) -> Step:
    x, w = cuda(1024, 512, dtype=BF16), cuda(10001 if bad else 10048, 512, dtype=BF16)
    return inference(lambda: F.linear(x, w))


@pair("written-out-attention")
def attention(bad: bool) -> Step:
    q, k, v = (cuda(2, 4, 128, 64, dtype=BF16) for _ in range(3))
    mask = torch.ones(128, 128, dtype=torch.bool, device="cuda").triu(1)

    def step() -> object:
        if not bad:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = (q @ k.transpose(-1, -2)) * 0.125
        return scores.masked_fill(mask, float("-inf")).softmax(-1) @ v

    return inference(step)


@pair("written-out-attention")
def a_classifier_is_no_attention(bad: bool) -> Step:
    q, k, v = (cuda(2, 4, 128, 64) for _ in range(3))
    x, w = cuda(128, 64), cuda(64, 10)
    return inference(lambda: (q @ k.mT).softmax(-1) @ v if bad else (x @ w).softmax(-1))


@pair("rebuilt-constant")
def rotary_table(bad: bool) -> Step:
    x = cuda(4, 256, 64)

    def table() -> torch.Tensor:
        positions = torch.arange(256, device="cuda").float()
        return torch.outer(positions, 1.0 / (10000 ** (torch.arange(64, device="cuda") / 64))).cos()

    kept = table()
    return inference(lambda: x * (table() if bad else kept))


@pair("rebuilt-constant")
def an_accumulator_is_no_table(bad: bool) -> Step:
    x, index = cuda(1024, 512), torch.zeros(1024, dtype=torch.long, device="cuda")

    def step() -> object:
        if bad:
            return x[:, :512] + torch.ones(512, 512, device="cuda").triu().repeat(2, 1)
        return torch.zeros(1024, 512, device="cuda").index_add_(0, index, x)

    return inference(step)


@pair("repeated-op")
def softmax_twice(bad: bool) -> Step:
    x = cuda(64, 64)

    def step() -> object:
        first = torch.softmax(x, -1)
        return first * (torch.softmax(x, -1) if bad else first)

    return inference(step)


@pair("repeated-op")
def written_in_between(bad: bool) -> Step:
    x = cuda(64, 64)

    def step() -> object:
        first = torch.softmax(x, -1)
        if not bad:
            x.add_(1)
        return first + torch.softmax(x, -1)

    return inference(step)


@pair("training-mode")
def dropout_left_on(bad: bool) -> Step:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1)).cuda().train(bad), cuda(8, 64)
    return inference(lambda: model(x))


@pair("training-mode")
def batch_norm_left_on(bad: bool) -> Step:
    model, x = nn.BatchNorm2d(8).cuda().train(bad), cuda(4, 8, 16, 16)
    return inference(lambda: model(x))


class Standardized(nn.Module):
    """A weight is standardized by batch norm's kernel, as norm-free networks do; images by batch norm itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, 3, 3))

    def forward(self, x: torch.Tensor, bad: bool) -> torch.Tensor:
        weight = F.batch_norm(self.weight.reshape(1, 8, -1), None, None, training=True).reshape(
            self.weight.shape
        )
        x = F.conv2d(x, weight)
        return F.batch_norm(x, None, None, training=True) if bad else x


@pair("training-mode")
def standardized_weight(bad: bool) -> Step:
    model, x = Standardized().cuda(), cuda(4, 8, 16, 16)
    return inference(lambda: model(x, bad))


@pair("training-mode")
def training_trains(bad: bool) -> Step:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1)).cuda(), cuda(8, 64)
    return lambda: model(x) if bad else model(x).sum().backward()


@pair("frozen-gradient")
def frozen_backbone(bad: bool) -> Step:
    backbone, head = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).cuda(), nn.Linear(64, 10).cuda()
    backbone.requires_grad_(bad)
    optimizer, x = torch.optim.SGD(head.parameters(), lr=1e-3), cuda(8, 64)

    def step() -> None:
        optimizer.zero_grad()
        head(backbone(x)).sum().backward()
        optimizer.step()

    return step


@pair("kept-alive")
def activations_in_a_list(bad: bool) -> Step:
    layers, x = [nn.Linear(512, 512, device="cuda") for _ in range(16)], cuda(2048, 512)

    def step() -> object:
        kept = []
        y = x
        for layer in layers:
            y = torch.relu(layer(y))
            if bad:
                kept.append(y)
        return y

    return inference(step)


@pair("low-mfu")
def small_products(bad: bool) -> Step:
    """Products that the host cannot issue fast enough, and products that keep the GPU busy."""
    size = 512 if bad else 8192
    x, w = (cuda(size, size, dtype=BF16) for _ in range(2))

    def step() -> object:
        y = x
        for _ in range(12 if bad else 3):
            y = y @ w
        return y

    return inference(step)


@pair("timer")
def no_synchronize(bad: bool) -> Step:
    x = cuda(64, 64)

    def step() -> float:
        x @ x
        torch.cuda.synchronize()
        start = time.perf_counter()
        x @ x
        if not bad:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    return inference(step)


@pair("timer")
def no_warm_up(bad: bool) -> Step:
    x = cuda(64, 64)

    def step() -> float:
        if not bad:
            x @ x
        torch.cuda.synchronize()
        start = time.perf_counter()
        x @ x
        torch.cuda.synchronize()
        return time.perf_counter() - start

    return inference(step)
