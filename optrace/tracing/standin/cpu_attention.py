# ruff: noqa: ARG001  # signatures are those of torch
"""Fused attention on the CPU: the same outputs and gradients as flash, memory-efficient and cuDNN attention.

The kernels keep the logarithm of each row's sum instead of the probabilities, and draw the dropout mask again from
a seed in the backward; so do these. They hold the whole matrix of scores, in float32 at least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

LARGEST_SEED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Problem:
    """What forward and backward compute alike: inputs in a wide dtype, a key and value head for each query head."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    dropout: float
    causal: bool
    scale: float

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        dropout: float,
        causal: bool,
        scale: float | None,
    ) -> _Problem:
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        heads = q.size(1)
        k, v = (t.to(wide).repeat_interleave(heads // t.size(1), 1) for t in (k, v))
        chosen = 1 / math.sqrt(q.size(-1)) if scale is None else scale
        return cls(q.to(wide), k, v, None if bias is None else bias.to(wide), dropout, causal, chosen)

    def scores(self) -> Tensor:
        scores = self.q @ self.k.mT * self.scale
        if self.bias is not None:
            scores = scores + self.bias
        if self.causal:
            kept = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            scores = scores.masked_fill(~kept, -math.inf)
        return scores

    def kept(self, seed: int) -> Tensor | float:
        """What dropout multiplies the probabilities with."""
        if not self.dropout:
            return 1.0
        shape = (*self.q.shape[:3], self.k.size(2))
        drawn = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
        return (drawn >= self.dropout) / (1 - self.dropout)

    def forward(self, seed: int) -> tuple[Tensor, Tensor]:
        """The output and the logarithm of the rows' sums."""
        scores = self.scores()
        logsumexp = scores.logsumexp(-1)
        return (_probabilities(scores, logsumexp) * self.kept(seed)) @ self.v, logsumexp

    def backward(self, grad: Tensor, out: Tensor, logsumexp: Tensor, seed: int) -> tuple[Tensor, ...]:
        """Gradients of the query, key, value and scores."""
        grad, out = grad.to(self.q.dtype), out.to(self.q.dtype)
        p, kept = _probabilities(self.scores(), logsumexp.to(self.q.dtype)), self.kept(seed)
        grad_v = (p * kept).mT @ grad
        grad_scores = p * ((grad @ self.v.mT) * kept - (grad * out).sum(-1, keepdim=True))
        return grad_scores @ self.k * self.scale, grad_scores.mT @ self.q * self.scale, grad_v, grad_scores


def _probabilities(scores: Tensor, logsumexp: Tensor) -> Tensor:
    """Rows of which everything is masked are zero."""
    lowest = torch.finfo(scores.dtype).min
    return (scores - logsumexp.unsqueeze(-1).clamp_min(lowest)).exp()


def _draw_seed(dropout: float) -> int:
    return int(torch.randint(LARGEST_SEED, ())) if dropout else 0


def _reduced(grad: Tensor, like: Tensor) -> Tensor:
    """The gradient of heads that several query heads share."""
    batch, _, length, width = grad.shape
    return grad.view(batch, like.size(1), -1, length, width).sum(2).to(like.dtype)


def _gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    seed: Tensor,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> tuple[Tensor, ...]:
    problem = _Problem.of(q, k, v, bias, dropout, causal, scale)
    first = int(seed.flatten()[0]) if dropout else 0
    grad_q, grad_k, grad_v, grad_scores = problem.backward(grad, out, logsumexp, first)
    return grad_q.to(q.dtype), _reduced(grad_k, k), _reduced(grad_v, v), grad_scores


def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Sequence[Any]:
    """`aten::_scaled_dot_product_flash_attention`."""
    seed = _draw_seed(dropout)
    out, logsumexp = _Problem.of(q, k, v, None, dropout, causal, scale).forward(seed)
    return out.to(q.dtype), logsumexp.float(), None, None, q.size(2), k.size(2), seed, seed, None


def flash_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_q: Any,
    cum_k: Any,
    max_q: int,
    max_k: int,
    dropout: float,
    causal: bool,
    seed: Tensor,
    offset: Any,
    *,
    scale: float | None = None,
) -> Sequence[Any]:
    """`aten::_scaled_dot_product_flash_attention_backward`."""
    return _gradients(grad, q, k, v, None, out, logsumexp, seed, dropout, causal, scale)[:3]


def cudnn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    compute_logsumexp: bool,
    dropout: float = 0.0,
    causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Sequence[Any]:
    """`aten::_scaled_dot_product_cudnn_attention`."""
    seed = _draw_seed(dropout)
    out, logsumexp = _Problem.of(q, k, v, bias, dropout, causal, scale).forward(seed)
    kept = logsumexp.unsqueeze(-1).float() if compute_logsumexp else None
    return out.to(q.dtype), kept, None, None, q.size(2), k.size(2), seed, seed, None


def cudnn_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    seed: Tensor,
    offset: Any,
    bias: Tensor | None,
    cum_q: Any,
    cum_k: Any,
    max_q: int,
    max_k: int,
    dropout: float,
    causal: bool,
    *,
    scale: float | None = None,
) -> Sequence[Any]:
    """`aten::_scaled_dot_product_cudnn_attention_backward`."""
    rows = logsumexp.reshape(out.shape[:3])
    return _gradients(grad, q, k, v, bias, out, rows, seed, dropout, causal, scale)[:3]


def efficient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    compute_logsumexp: bool,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
) -> Sequence[Any]:
    """`aten::_scaled_dot_product_efficient_attention`; rows of sums are padded to multiples of 32."""
    seed = _draw_seed(dropout)
    out, logsumexp = _Problem.of(q, k, v, bias, dropout, causal, scale).forward(seed)
    length = q.size(2)
    padded = torch.nn.functional.pad(logsumexp.float(), (0, -length % 32), value=math.inf)
    return out.to(q.dtype), padded if compute_logsumexp else padded[:, :, :0], seed, seed


def efficient_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    seed: Tensor,
    offset: Any,
    dropout: float,
    mask: Sequence[bool],
    causal: bool = False,
    *,
    scale: float | None = None,
) -> Sequence[Any]:
    """`aten::_scaled_dot_product_efficient_attention_backward`."""
    rows = logsumexp[:, :, : q.size(2)]
    grads = _gradients(grad, q, k, v, bias, out, rows, seed, dropout, causal, scale)
    grad_bias = None if bias is None else grads[3].sum_to_size(bias.shape).to(bias.dtype)
    return [g if wanted else None for g, wanted in zip((*grads[:3], grad_bias), mask, strict=True)]
