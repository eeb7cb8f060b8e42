"""Fused scaled dot product attention: query x key and probabilities x value, nothing of size L x S kept."""

from __future__ import annotations

import math

from optrace.cost.profiles import Target
from optrace.cost.rules.table import rule, streaming
from optrace.cost.work import Work
from optrace.graph import OpNode


def _scores(node: OpNode) -> int:
    """Query-key pairs that are computed, over batch and heads. A causal mask leaves the lower triangle."""
    query, key = node.tensor("query"), node.tensor("key")
    length, keys = query.shape[-2], key.shape[-2]
    pairs = length * keys
    if node.arg("is_causal", False):
        short = min(length, keys)
        pairs = short * (short + 1) // 2 + (length - short) * keys
    return math.prod(query.shape[:-2]) * pairs


@rule(
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_cudnn_attention",
)
def attends(node: OpNode, _target: Target) -> Work:
    """Two products over the score pairs, 5 FLOPs a score for the softmax between them."""
    query, value = node.tensor("query"), node.tensor("value")
    scores = _scores(node)
    flops = 2 * scores * (query.shape[-1] + value.shape[-1])
    return streaming(
        node, flops=flops + 5 * scores, matmul_flops=flops, kind="attention", math_dtype=query.dtype
    )


@rule(
    "aten._scaled_dot_product_flash_attention_backward",
    "aten._scaled_dot_product_efficient_attention_backward",
    "aten._scaled_dot_product_cudnn_attention_backward",
)
def attends_backward(node: OpNode, _target: Target) -> Work:
    """Scores again and four gradient products: 2.5 x the forward. A dot of gradient and output comes first."""
    query, value = node.tensor("query"), node.tensor("value")
    scores = _scores(node)
    flops = 2 * scores * (3 * query.shape[-1] + 2 * value.shape[-1])
    return streaming(
        node,
        kernels=3,
        flops=flops + 8 * scores,
        matmul_flops=flops,
        kind="attention",
        math_dtype=query.dtype,
    )


@rule("aten._flash_attention_forward", "aten._efficient_attention_forward")
def attends_batch_first(node: OpNode, _target: Target) -> Work:
    """The same over [batch, length, heads, dim]; packed sequences count as one padded batch (an upper bound)."""
    query, key, value = node.inputs[:3]
    batch, length, heads, dim = query.shape if len(query.shape) == 4 else (1, *query.shape)
    keys = key.shape[-3]
    pairs = length * keys
    if node.arg("is_causal", False):
        pairs = min(length, keys) * (min(length, keys) + 1) // 2 + max(0, length - keys) * keys
    scores = batch * heads * pairs
    flops = 2 * scores * (dim + value.shape[-1])
    return streaming(
        node, flops=flops + 5 * scores, matmul_flops=flops, kind="attention", math_dtype=query.dtype
    )
