"""FLOPs by hand count, through the tracer: on the CPU, where torch's own counter is wrong for many, and on a GPU."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import optrace

DEVICES = pytest.mark.parametrize("device", ["cpu", "cuda"])


def counted(device: str, run: Callable[..., Any], *given: nn.Module | tuple[int, ...]) -> tuple[float, float]:
    """``matmul_flops`` and all ``flops`` of ``run`` on placed modules and zeros that want gradients."""
    with optrace.trace(mode="fake", device=device) as t:
        placed = [
            t.place(deepcopy(item))
            if isinstance(item, nn.Module)
            else t.place(torch.zeros(item)).requires_grad_()
            for item in given
        ]
        with optrace.step():
            run(*placed)
    totals = t.report().totals
    assert totals["flops"].complete
    return totals["matmul_flops"].value, totals["flops"].value


@DEVICES
@pytest.mark.parametrize(
    ("run", "shapes", "matmul", "more"),
    [
        # Vectors: torch counts none of these.
        (torch.mv, [(3, 4), (4,)], 2 * 3 * 4, 0),
        (torch.dot, [(4,), (4,)], 2 * 4, 0),
        (torch.addmv, [(3,), (3, 4), (4,)], 2 * 3 * 4, 3),
        (torch.addr, [(3, 4), (3,), (4,)], 0, 2 * 3 * 4),
        (torch.outer, [(3,), (4,)], 0, 3 * 4),
        # einsum through its parts.
        (lambda a, b: torch.einsum("bij,bjk->bik", a, b), [(2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5, 0),
        (
            lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c),
            [(3, 4), (4, 5), (5, 6)],
            2 * 3 * 4 * 5 + 2 * 3 * 5 * 6,
            0,
        ),
        (lambda a, b: torch.einsum("i,j->ij", a, b), [(3,), (4,)], 0, 3 * 4),
        (lambda a, b: torch.tensordot(a, b, 2), [(3, 4, 5), (4, 5, 6)], 2 * 3 * 20 * 6, 0),
        (torch.matmul, [(2, 3, 4, 5), (5, 6)], 2 * (2 * 3 * 4) * 5 * 6, 0),
        (torch.baddbmm, [(2, 3, 5), (2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5, 2 * 3 * 5),
        # Distances: subtract, multiply and add a pair and coordinate; many pairs by a product two columns wider.
        (torch.cdist, [(5, 3), (6, 3)], 0, 3 * 5 * 6 * 3),
        (
            torch.cdist,
            [(30, 3), (40, 3)],
            2 * 30 * 40 * (3 + 2),
            2 * (30 + 40) * 3 + 30 * 3 + 2 * 30 * 40,
        ),
    ],
)
def test_products(
    device: str, run: Callable[..., Any], shapes: list[tuple[int, ...]], matmul: int, more: int
) -> None:
    with torch.no_grad():
        assert counted(device, run, *shapes) == (matmul, matmul + more)


def backward(layer: nn.Module, x: torch.Tensor) -> None:
    layer(x).sum().backward()


@DEVICES
@pytest.mark.parametrize(
    ("layer", "shape", "forward"),
    [
        (nn.Conv1d(4, 6, 3), (2, 4, 10), 2 * 2 * 6 * 8 * 4 * 3),
        (nn.Conv2d(8, 16, 3, padding=1, groups=4), (2, 8, 10, 10), 2 * 2 * 16 * 100 * 2 * 9),
        (nn.Conv2d(8, 8, 3, groups=8), (2, 8, 10, 10), 2 * 2 * 8 * 64 * 9),
        (nn.Conv3d(4, 6, 3, groups=2), (2, 4, 5, 5, 5), 2 * 2 * 6 * 27 * 2 * 27),
        (nn.ConvTranspose2d(4, 6, 3, 2), (2, 4, 5, 5), 2 * 2 * 25 * 4 * 6 * 9),
        (nn.ConvTranspose2d(4, 6, 3, 2, groups=2), (2, 4, 5, 5), 2 * 2 * 25 * 4 * 3 * 9),
        (nn.Linear(4, 5), (2, 3, 4), 2 * (2 * 3) * 4 * 5),
    ],
)
def test_a_layer_forward_and_backward(
    device: str, layer: nn.Module, shape: tuple[int, ...], forward: int
) -> None:
    """The gradients of data and of weights each take what the forward pass takes."""
    # Placing a module moves it, and both devices are handed this one.
    assert counted(device, backward, deepcopy(layer), shape)[0] == 3 * forward


@DEVICES
def test_causal_attention(device: str) -> None:
    """``matmul_flops`` is half of the square, as papers count; ``flops`` the 8 x 9 / 2 pairs that are computed, and
    softmax: 5 FLOPs a pair, 8 backward. Two products forward, five backward."""

    def run(q: torch.Tensor) -> None:
        F.scaled_dot_product_attention(q, q, q, is_causal=True).backward(torch.zeros_like(q))

    matmul, flops = counted(device, run, (1, 2, 8, 4))
    half, pairs = 2 * 8 * 8 // 2, 2 * (8 * 9 // 2)
    assert matmul == 2 * half * (2 * 4) + 2 * half * (5 * 4)
    # The sum of the three uses' gradients: 2 x 1 x 2 x 8 x 4.
    assert flops == pairs * (2 * 2 * 4 + 5) + pairs * (2 * 5 * 4 + 8) + 2 * 64


@DEVICES
def test_an_encoder_layer_on_the_fast_path(device: str) -> None:
    """One op for the layer, which torch counts as 0: projections, attention, two linear layers."""

    def run(layer: nn.Module, x: torch.Tensor) -> None:
        with torch.no_grad():
            layer(x)

    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    rows = 2 * 5
    projections, attention, feed_forward = 4 * 16 * 16, 2 * 2 * 5 * 5 * 16, 2 * 16 * 32
    assert counted(device, run, layer, (2, 5, 16))[0] == 2 * (rows * (projections + feed_forward) + attention)


@pytest.mark.parametrize(
    ("run", "shapes", "flops"),
    [
        # 5 n log2(n) a complex transform, half for a real one.
        (torch.fft.rfft, [(3, 8)], 3 * 5 * 8 * 3 // 2),
        # With a look at each matrix's error code.
        (torch.linalg.inv, [(2, 6, 6)], 2 * 2 * 6**3 + 2),
        (torch.linalg.cholesky, [(6, 6)], 6**3 // 3 + 1),
        (torch.linalg.solve, [(6, 6), (6, 2)], 2 * 6**3 // 3 + 2 * 6**2 * 2 + 1),
    ],
)
def test_libraries_have_a_count_though_their_launches_are_not_known(
    run: Callable[..., Any], shapes: list[tuple[int, ...]], flops: int
) -> None:
    with torch.no_grad():
        assert counted("cuda", run, *shapes) == (0, flops)
