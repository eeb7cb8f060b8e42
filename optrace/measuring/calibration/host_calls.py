"""Small calls by host class: what calibration times. Each is host-bound on any GPU: its tensors are tiny."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from optrace.cost.host_profile import HostClass

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """``call`` dispatches ``each`` calls of class ``kind``, and views at most besides."""

    kind: HostClass
    name: str
    call: Call
    each: int = 1


def cases(device: str) -> list[Case]:
    """Three or more calls a class, on ``device``."""
    x, y = torch.randn(32, 64, device=device), torch.randn(32, 64, device=device)
    square, bias = torch.randn(64, 64, device=device), torch.randn(64, device=device)
    batch = torch.randn(4, 32, 64, device=device)
    half = x.to(torch.bfloat16)
    rows = torch.randint(0, 32, (16,), device=device)
    image, kernel = torch.randn(2, 8, 16, 16, device=device), torch.randn(8, 8, 3, 3, device=device)

    def filters(batch: int, size: int, width: int, widths: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Images, and kernels that make ``widths`` channels of ``size`` channels."""
        return [
            (
                torch.randn(batch, size, side, side, device=device),
                torch.randn(out, size, width, width, device=device),
            )
            for out in widths
            for side in (14, 28)
        ]

    small = filters(2, 8, 3, (8, 16, 24, 32))
    # Enough work for cuDNN to copy between layouts.
    deep, points = filters(4, 64, 3, (64, 96, 128, 160)), filters(4, 64, 1, (64, 96, 128, 160))
    mean, scale = torch.zeros(8, device=device), torch.ones(8, device=device)
    heads = torch.randn(2, 4, 32, 64, device=device, dtype=torch.bfloat16)
    table: Mapping[HostClass, Sequence[tuple[str, Call]]] = {
        "view": (
            ("view", lambda: x.view(-1)),
            ("transpose", lambda: batch.transpose(1, 2)),
            ("slice", lambda: x[2:5]),
            ("unsqueeze", lambda: x.unsqueeze(0)),
            ("expand", lambda: bias.expand(4, 64)),
            ("permute", lambda: batch.permute(2, 0, 1)),
            ("t", square.t),
        ),
        "allocation": (
            ("empty", lambda: torch.empty(32, 64, device=device)),
            ("empty_like", lambda: torch.empty_like(x)),
            ("new_empty", lambda: x.new_empty(4, 4)),
        ),
        "elementwise": (
            ("add", lambda: torch.add(x, y)),
            ("mul", lambda: torch.mul(x, 2)),
            ("relu", lambda: torch.relu(x)),
            ("gelu", lambda: torch._C._nn.gelu(x)),
            ("rsqrt", lambda: torch.rsqrt(x)),
            ("eq", lambda: torch.eq(x, y)),
            ("silu", lambda: torch._C._nn.silu(x)),
            ("add_", lambda: y.add_(x)),
            ("where", lambda: torch.where(flags, x, y)),
        ),
        "reduction": (
            ("sum", lambda: torch.sum(x)),
            ("mean", lambda: torch.mean(x, -1)),
            ("amax", lambda: torch.amax(x, -1)),
            ("softmax", lambda: torch.softmax(x, -1)),
            ("argmax", lambda: torch.argmax(x, -1)),
        ),
        "normalization": (
            ("layer_norm", lambda: torch.native_layer_norm(x, (64,), bias, bias, 1e-5)),
            (
                "batch_norm",
                lambda: torch.native_batch_norm(image, scale, scale, mean, scale, False, 0.1, 1e-5),
            ),
            (
                "cudnn_batch_norm",
                lambda: torch.cudnn_batch_norm(image, scale, scale, mean, scale, False, 0.1, 1e-5),
            ),
        ),
        "normalization_backward": (
            (
                "layer_norm",
                lambda: aten.native_layer_norm_backward(x, x, [64], *statistics, bias, bias, [True] * 3),
            ),
        ),
        "matmul": (
            ("mm", lambda: torch.mm(x, square)),
            ("mm_bf16", lambda: torch.mm(half, square_half)),
            ("bmm", lambda: torch.bmm(batch, batch_t)),
        ),
        "addmm": (
            ("addmm", lambda: torch.addmm(bias, x, square)),
            ("addmm_bf16", lambda: torch.addmm(bias_half, half, square_half)),
        ),
        # Each with another filter, as in a network: a convolution that is called again and again finds all that it
        # looks up in the processor's caches, and takes half the time.
        "convolution": (
            ("network", lambda: [torch.conv2d(image, kernel, None, 1, 1) for image, kernel in small]),
            ("relaid", lambda: [torch.conv2d(image, kernel, None, 1, 1) for image, kernel in deep]),
            ("pointwise", lambda: [torch.conv2d(image, kernel) for image, kernel in points]),
        ),
        "convolution_backward": (
            (
                "conv2d",
                lambda: aten.convolution_backward(
                    image, image, kernel, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
                ),
            ),
        ),
        "attention": (
            ("flash", lambda: aten._scaled_dot_product_flash_attention(heads, heads, heads)),
            (
                "efficient",
                lambda: aten._scaled_dot_product_efficient_attention(heads, heads, heads, None, False),
            ),
        ),
        "attention_backward": (("flash", lambda: flash_backward(*flash_arguments)),),
        "gather": (
            ("index_select", lambda: torch.index_select(x, 0, rows)),
            ("index", lambda: aten.index(x, [rows])),
            ("embedding", lambda: torch.embedding(x, rows)),
            ("gather", lambda: torch.gather(x, 0, positions)),
        ),
        "foreach": (("add", lambda: torch._foreach_add_([x], 1.0)),),
        "copy": (
            ("clone", x.clone),
            ("cast", x.half),
            ("copy_", lambda: y.copy_(x)),
            ("contiguous", lambda: batch_t.contiguous()),
        ),
    }
    aten = torch.ops.aten
    flags, positions = x > 0, rows[:, None].expand(16, 64)
    square_half, bias_half = square.to(torch.bfloat16), bias.to(torch.bfloat16)
    batch_t = batch.transpose(1, 2)
    statistics = torch.native_layer_norm(x, (64,), bias, bias, 1e-5)[1:]
    out, logsumexp, begin_q, begin_k, longest_q, longest_k, state, unused, _ = (
        aten._scaled_dot_product_flash_attention(heads, heads, heads)
    )
    flash_backward = aten._scaled_dot_product_flash_attention_backward.default
    flash_arguments = (
        out, heads, heads, heads, out, logsumexp, begin_q, begin_k, longest_q, longest_k, 0.0, False, state, unused,
    )  # fmt: skip
    each = {"network": len(small), "relaid": len(deep), "pointwise": len(points)}
    return [
        Case(kind, name, call, each.get(name, 1)) for kind, named in table.items() for name, call in named
    ]


class _Block(torch.nn.Module):
    """Attention and a feed-forward layer, as transformers have them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.project = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.widen, self.narrow = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.before(x)).chunk(3, -1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + self.project(attended)
        narrowed: Tensor = x + self.narrow(F.gelu(self.widen(self.between(x))))
        return narrowed


class _Bottleneck(torch.nn.Module):
    """Three convolutions with batch norm and a way past them, as residual nets have them."""

    def __init__(self, before: int, width: int, after: int) -> None:
        super().__init__()
        widths = ((before, width, 1), (width, width, 3), (width, after, 1))
        self.convolutions = torch.nn.ModuleList(
            torch.nn.Conv2d(of, to, size, padding=size // 2, bias=False) for of, to, size in widths
        )
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(to) for _, to, _ in widths)
        self.activation = torch.nn.ReLU()
        self.past = torch.nn.Conv2d(before, after, 1) if before != after else torch.nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            y = self.activation(norm(convolution(y)))
        summed: Tensor = y + self.past(x)
        return summed


class _Tokens(torch.nn.Module):
    """A decoder: an embedding, blocks, a norm and a head."""

    def __init__(self, width: int, heads: int, blocks: int, words: int = 500) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(words, width)
        self.blocks = torch.nn.Sequential(*[_Block(width, heads) for _ in range(blocks)])
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(self.norm(self.blocks(self.words(tokens))))
        return scores


def networks(device: str) -> Mapping[str, Call]:
    """Steps of networks with as many calls as those in use: a convolutional net, a transformer and a small perceptron, each
    in inference and forward and backward, with no optimizer. No two layers have the same weights; tensors are tiny."""
    widths = [(32, 64)] * 3 + [(48, 96)] * 4 + [(64, 128)] * 6 + [(80, 160)] * 3
    before = [16, *(after for _, after in widths[:-1])]
    residual = torch.nn.Sequential(
        *[_Bottleneck(of, width, after) for of, (width, after) in zip(before, widths, strict=True)]
    )
    perceptron = torch.nn.Sequential(
        *[layer for _ in range(6) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
    )
    models: Mapping[str, tuple[torch.nn.Module, Tensor]] = {
        "convolutional": (residual.to(device), torch.randn(2, 16, 14, 14, device=device)),
        "transformer": (
            _Tokens(64, 4, 12).to(device, torch.bfloat16),
            torch.zeros(2, 16, dtype=torch.long, device=device),
        ),
        "perceptron": (perceptron.to(device), torch.randn(32, 64, device=device)),
    }

    def infer(model: torch.nn.Module, x: Tensor) -> None:
        with torch.no_grad():
            model(x)

    def train(model: torch.nn.Module, x: Tensor) -> None:
        model.zero_grad(set_to_none=True)
        with torch.enable_grad():
            model(x).float().square().mean().backward()

    inference = {
        f"{name}, inference": partial(infer, deepcopy(model).eval(), x) for name, (model, x) in models.items()
    }
    return inference | {f"{name}, backward": partial(train, model, x) for name, (model, x) in models.items()}


def training_step(device: str) -> Call:
    """A step of a small transformer: the Python between calls that models commonly have."""
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, device=device)
    model = torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 4), torch.nn.Linear(64, 10, device=device))
    optimizer = torch.optim.AdamW(model.parameters())
    x, labels = torch.randn(4, 16, 64, device=device), torch.zeros(4 * 16, dtype=torch.long, device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x).flatten(0, 1), labels).backward()  # type: ignore[no-untyped-call]  # torch leaves it so
        optimizer.step()

    return step
