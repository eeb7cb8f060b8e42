"""The programs of a sitting (``python -m tests.measuring.sitting FOLDER``): inference, decoding and training, more than half
of them too small to keep a large GPU busy.

    optrace measure tests/measuring/sitting_programs.py:residual_infer_b1

Each needs torch alone. What is built before the step is built the first time it is called, which is part of the warm-up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[], object]

BF16 = torch.bfloat16
PROGRAMS: dict[str, Step] = {}


def program(build: Callable[[], Step]) -> Step:
    """``build`` as a step that is built where it is first called."""

    @functools.cache
    def built() -> Step:
        return build()

    @functools.wraps(build)
    def step() -> object:
        return built()()

    PROGRAMS[build.__name__] = step
    return step


def infer(model: nn.Module, *inputs: Tensor, dtype: torch.dtype | None = None) -> Step:
    model = model.cuda().eval().to(dtype)

    def step() -> object:
        with torch.no_grad():
            return model(*inputs)

    return step


def train(
    model: nn.Module,
    *inputs: Tensor,
    dtype: torch.dtype | None = None,
    autocast: bool = False,
    optimizer: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer] = torch.optim.AdamW,
) -> Step:
    model = model.cuda().train().to(dtype)
    updates = optimizer(model.parameters())

    def step() -> None:
        updates.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=BF16, enabled=autocast):
            loss = model(*inputs).float().square().mean()
        loss.backward()
        updates.step()

    return step


def sgd(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


def one_by_one(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, foreach=False)


def fused(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, fused=True)


def images(batch: int, side: int = 224, channels: int = 3, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(batch, channels, side, side, device="cuda", dtype=dtype)


def tokens(batch: int, length: int, words: int = 1000) -> Tensor:
    return torch.randint(0, words, (batch, length), device="cuda")


def rows(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def convolved(before: int, after: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    )


class Bottleneck(nn.Module):
    """Three convolutions and a way past them (ResNet)."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.deep = nn.Sequential(
            convolved(before, width, 1),
            convolved(width, width, 3, stride),
            nn.Conv2d(width, after, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.past = nn.Identity() if before == after else convolved(before, after, 1, stride)[:2]

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.deep(x) + self.past(x))


def residual() -> nn.Module:
    """50 layers."""
    layers: list[nn.Module] = [convolved(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(depth):
            layers.append(Bottleneck(before, width, stride if number == 0 else 1))
            before = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))


class Inverted(nn.Module):
    """A depthwise convolution between two of width 1, with squeeze and excitation (MobileNet, EfficientNet)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        width = 4 * before
        self.widen, self.depthwise = convolved(before, width, 1), convolved(width, width, 3, stride, width)
        self.squeeze, self.excite = nn.Conv2d(width, before, 1), nn.Conv2d(before, width, 1)
        self.narrow = nn.Sequential(nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after))
        self.adds = before == after and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.widen(x))
        y = y * torch.sigmoid(self.excite(F.silu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        y = self.narrow(y)
        return x + y if self.adds else y


def mobile() -> nn.Module:
    widths = [16, 24, 24, 40, 40, 80, 80, 112, 112, 160]
    blocks = [Inverted(before, after, 2 if before != after else 1) for before, after in pairwise(widths)]
    return nn.Sequential(
        convolved(3, 16, 3, 2), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(160, 1000)
    )


class UNet(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()

        def block(before: int, after: int) -> nn.Module:
            return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU())

        self.down = nn.ModuleList(
            block(before, after) for before, after in ((3, width), (width, 2 * width), (2 * width, 4 * width))
        )
        self.up = nn.ModuleList((block(6 * width, 2 * width), block(3 * width, width)))
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down[0](x)
        second = self.down[1](F.max_pool2d(first, 2))
        y = self.down[2](F.max_pool2d(second, 2))
        for block, past in zip(self.up, (second, first), strict=True):
            y = block(torch.cat([F.interpolate(y, scale_factor=2, mode="bilinear"), past], 1))
        return self.out(y)


class Block(nn.Module):
    """Attention and a feed-forward layer, causal, with norms of the root mean square (Llama) or of a layer (GPT)."""

    def __init__(self, width: int, heads: int, root: bool) -> None:
        super().__init__()
        norm = nn.RMSNorm if root else nn.LayerNorm
        self.heads, self.root = heads, root
        self.before, self.between = norm(width), norm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, length, width))
        wide = self.widen(self.between(x))
        return x + self.narrow(F.silu(wide) if self.root else F.gelu(wide))


class Decoder(nn.Module):
    def __init__(self, width: int, heads: int, depth: int, *, root: bool = False, words: int = 16000) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(2048, width)
        self.blocks = nn.ModuleList(Block(width, heads, root) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Patches(nn.Module):
    """A vision transformer."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, 16, 16)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.cut(x).flatten(2).transpose(1, 2)).mean(1))


class WrittenOut(nn.Module):
    """Attention without the fused op, a mask made each time."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        mask = torch.ones(length, length, device=x.device, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
        return self.project((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Tables(nn.Module):
    """Embedding bags and pairwise products (DLRM)."""

    def __init__(self, tables: int = 20) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(20000, 64, mode="sum") for _ in range(tables))
        self.bottom, self.top = perceptron(13, 256, 64), perceptron(64 + tables * (tables + 1) // 2, 256, 1)
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        each = torch.stack([x, *(table(sparse[:, k]) for k, table in enumerate(self.tables))], 1)
        products = torch.bmm(each, each.transpose(1, 2))
        return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], 1))


class Graph(nn.Module):
    """Two layers that add up neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList((nn.Linear(128, 256), nn.Linear(256, 40)))

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
            x = torch.zeros_like(x).index_add_(0, target, x[source]).relu()
        return x


class Experts(nn.Module):
    """A mixture of experts, each of which sees all tokens."""

    def __init__(self, width: int = 512, experts: int = 8) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(perceptron(width, width, width) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        shares = self.router(x).softmax(-1)
        return sum(expert(x) * shares[:, k : k + 1] for k, expert in enumerate(self.experts))  # type: ignore[return-value]


class Cells(nn.Module):
    """A recurrence in Python."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.cell = nn.GRUCell(width, width)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x[:, 0])
        for place in range(x.shape[1]):
            state = self.cell(x[:, place], state)
        return state


def perceptron(*widths: int) -> nn.Sequential:
    layers = [layer for before, after in pairwise(widths) for layer in (nn.Linear(before, after), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


@program
def residual_infer_b1() -> Step:
    return infer(residual(), images(1))


@program
def residual_infer_b32() -> Step:
    return infer(residual(), images(32))


@program
def residual_infer_b8_bf16() -> Step:
    return infer(residual(), images(8, dtype=BF16), dtype=BF16)


@program
def residual_train_b8() -> Step:
    return train(residual(), images(8), optimizer=sgd)


@program
def residual_train_b16_autocast() -> Step:
    return train(residual(), images(16), autocast=True)


@program
def mobile_infer_b1() -> Step:
    return infer(mobile(), images(1))


@program
def mobile_infer_b64() -> Step:
    return infer(mobile(), images(64))


@program
def mobile_train_b8() -> Step:
    return train(mobile(), images(8), optimizer=sgd)


@program
def unet_infer_b1() -> Step:
    return infer(UNet(), images(1, 128))


@program
def unet_infer_b8() -> Step:
    return infer(UNet(), images(8, 256))


@program
def unet_train_b2() -> Step:
    return train(UNet(), images(2, 128))


@program
def patches_infer_b1() -> Step:
    return infer(Patches(384, 6, 12), images(1))


@program
def patches_infer_b32_bf16() -> Step:
    return infer(Patches(384, 6, 12), images(32, dtype=BF16), dtype=BF16)


@program
def patches_train_b8_autocast() -> Step:
    return train(Patches(192, 3, 12), images(8), autocast=True)


@program
def decoder_infer_b1_s64() -> Step:
    return infer(Decoder(512, 8, 8), tokens(1, 64))


@program
def decoder_infer_b4_s1024_bf16() -> Step:
    return infer(Decoder(1024, 16, 8, root=True), tokens(4, 1024), dtype=BF16)


@program
def decoder_one_token_bf16() -> Step:
    return infer(Decoder(1024, 16, 8, root=True), tokens(8, 1), dtype=BF16)


@program
def decoder_train_b2_s128() -> Step:
    return train(Decoder(384, 6, 6), tokens(2, 128))


@program
def decoder_train_b4_s512_fused_bf16() -> Step:
    return train(Decoder(768, 12, 6, root=True), tokens(4, 512), dtype=BF16, optimizer=fused)


@program
def decoder_train_b2_s128_sgd() -> Step:
    return train(Decoder(384, 6, 6, root=True), tokens(2, 128), optimizer=sgd)


@program
def written_out_infer_bf16() -> Step:
    return infer(WrittenOut(1024, 16), rows(8, 1024, 1024, dtype=BF16), dtype=BF16)


@program
def written_out_infer_small() -> Step:
    return infer(nn.Sequential(*[WrittenOut(256, 4) for _ in range(6)]), rows(2, 64, 256))


@program
def perceptron_infer_b32() -> Step:
    return infer(perceptron(784, 512, 512, 10), rows(32, 784))


@program
def perceptron_infer_b16384() -> Step:
    return infer(perceptron(4096, 4096, 4096, 4096), rows(16384, 4096))


@program
def perceptron_train_b64() -> Step:
    return train(perceptron(784, 512, 512, 10), rows(64, 784))


@program
def perceptron_train_b64_one_by_one() -> Step:
    return train(perceptron(784, 512, 512, 10), rows(64, 784), optimizer=one_by_one)


@program
def perceptron_train_b8192_fused() -> Step:
    return train(perceptron(784, 2048, 2048, 10), rows(8192, 784), optimizer=fused)


@program
def tables_infer_b512() -> Step:
    return infer(Tables(), rows(512, 13), torch.randint(0, 20000, (512, 20, 4), device="cuda"))


@program
def graph_train() -> Step:
    nodes, edges = 20000, 100000
    source, target = (torch.randint(0, nodes, (edges,), device="cuda") for _ in range(2))
    return train(Graph(), rows(nodes, 128), source, target)


@program
def experts_infer_bf16() -> Step:
    return infer(Experts(), rows(256, 512, dtype=BF16), dtype=BF16)


@program
def experts_train() -> Step:
    return train(Experts(), rows(256, 512))


@program
def cells_infer() -> Step:
    return infer(Cells(), rows(8, 48, 128))


@program
def cells_train() -> Step:
    return train(Cells(), rows(8, 24, 128))


@program
def recurrent_infer_b4() -> Step:
    return infer(nn.LSTM(128, 256, 2, batch_first=True), rows(4, 64, 128))


@program
def values_read_in_a_loop() -> Step:
    layer, x = nn.Linear(256, 256, device="cuda"), rows(64, 256)

    def step() -> object:
        total, y = 0.0, x
        for _ in range(16):
            y = torch.tanh(layer(y))
            total += y.sum().item()
        return total

    def without_gradients() -> object:
        with torch.no_grad():
            return step()

    return without_gradients


@program
def small_ops_in_a_loop() -> Step:
    weight, bias, x = rows(64, 64), rows(64), rows(8, 64)

    def step() -> object:
        with torch.no_grad():
            y = x
            for _ in range(24):
                y = y + F.gelu(y @ weight + bias)
            return y

    return step


@program
def softmax_and_norm_of_many_rows() -> Step:
    x = rows(8192, 8192)

    def step() -> object:
        with torch.no_grad():
            return F.layer_norm(torch.softmax(x, -1) * 2.0 + x, (8192,))

    return step


@program
def masked_sums() -> Step:
    x = rows(4096, 4096)

    def step() -> object:
        with torch.no_grad():
            return torch.where(x > 0, x.exp(), x).sum(0) / x.abs().mean()

    return step
