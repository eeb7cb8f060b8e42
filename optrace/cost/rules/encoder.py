"""The encoder fast path: attention or a whole transformer layer behind one op (inference only)."""

from __future__ import annotations

import math

from optrace.cost.profiles import Target
from optrace.cost.rules.attention import Shape
from optrace.cost.rules.gemm import Gemm, plan
from optrace.cost.rules.table import rule, streaming
from optrace.cost.work import Work
from optrace.graph import OpNode, TensorMeta


@rule("aten._native_multi_head_attention")
def attends_with_projections(node: OpNode, target: Target) -> Work:
    """Projection in, fused attention, projection out (transformers/cuda/attention.cu).

    Where the weights of the attention are asked for, it is done in steps: bias and split into heads, two batched
    products with a softmax between them, heads put back together, and a mean over heads if asked.
    """
    query, width, heads = node.tensor("query"), node.arg("embed_dim"), node.arg("num_head")
    assert isinstance(width, int)
    assert isinstance(heads, int)
    steps = 5 + bool(node.arg("average_attn_weights", True)) if node.arg("need_weights", True) else 1
    kernels, memsets, flops, softmax = _attention(query, width, heads, target)
    return streaming(
        node,
        kernels=kernels + steps,
        memsets=memsets,
        flops=flops + softmax,
        matmul_flops=flops,
        kind="attention",
        math_dtype=query.dtype,
        scratch=_projected(query, width),
    )


@rule("aten._transformer_encoder_layer_fwd")
def runs_an_encoder_layer(node: OpNode, target: Target) -> Work:
    """Attention with projections, two residual additions, two layer norms, and two linear layers with the
    activation in the first one's epilogue (transformers/transformer.cpp)."""
    data, width, heads = node.tensor("src"), node.arg("embed_dim"), node.arg("num_heads")
    assert isinstance(width, int)
    assert isinstance(heads, int)
    rows, hidden = data.numel // width, node.tensor("ffn_weight_1").shape[0]
    kernels, memsets, flops, other = _attention(data, width, heads, target)
    for n, k in ((hidden, width), (width, hidden)):
        made = plan(_linear(rows, n, k, data.dtype), target)
        kernels, memsets = kernels + made.kernels, memsets + made.memsets
        flops += 2 * rows * n * k
    other += rows * (2 * width + 2 * 5 * width + 2 * hidden + width)
    return streaming(
        node,
        kernels=kernels + 1 + 4,
        memsets=memsets,
        flops=flops + other,
        matmul_flops=flops,
        kind="attention",
        math_dtype=data.dtype,
        # After attention: its projection, the first sum and norm, hidden, the second projection and sum.
        scratch=(
            *_projected(data, width),
            *(rows * size * data.itemsize for size in (width, width, width, hidden, width, width)),
        ),
    )


def _attention(data: TensorMeta, width: int, heads: int, target: Target) -> tuple[int, int, int, int]:
    """Kernels and memsets of both projections; matmul FLOPs with the attention's; FLOPs of bias and softmax."""
    batch, length = (data.shape[0], data.shape[1]) if len(data.shape) == 3 else (1, data.shape[0])
    rows = batch * length
    head = width // heads
    shape = Shape(batch, heads, heads, length, length, head, head)
    made = [plan(_linear(rows, n, width, data.dtype), target) for n in (3 * width, width)]
    flops = 2 * rows * width * 4 * width + shape.forward_dims * shape.doubled_scores
    return (
        sum(p.kernels for p in made),
        sum(p.memsets for p in made),
        flops,
        4 * rows * width + 5 * math.prod((batch, heads, length, length)),
    )


def _projected(data: TensorMeta, width: int) -> tuple[int, int]:
    """Bytes of queries, keys and values, and of what attention makes of them."""
    return 3 * data.numel // data.shape[-1] * width * data.itemsize, data.numel * data.itemsize


def _linear(rows: int, n: int, k: int, dtype: str) -> Gemm:
    return Gemm(rows, n, k, dtype, right_transposed=True, fused_bias=True)
