"""The encoder fast path: attention or a whole transformer layer behind one op (inference only)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from optrace.cost.profiles import Target
from optrace.cost.rules.attention import Shape
from optrace.cost.rules.gemm import Gemm, plan
from optrace.cost.rules.table import rule, streaming, whole
from optrace.cost.work import Operand, Pass, Work
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
    activation in the first one's epilogue (transformers/transformer.cpp). Where the norm comes first, data that does not
    lie contiguous is copied for it. cuBLASLt's float32 kernels have no GELU in their epilogue: it takes a kernel of its own."""
    data, width, heads = node.tensor("src"), node.arg("embed_dim"), node.arg("num_heads")
    assert isinstance(width, int)
    assert isinstance(heads, int)
    rows, hidden = data.numel // width, node.tensor("ffn_weight_1").shape[0]
    kernels, memsets, flops, other = _attention(data, width, heads, target)
    for n, k in ((hidden, width), (width, hidden)):
        made = plan(linear_gemm(rows, n, k, data.dtype), target)
        kernels, memsets = kernels + made.kernels, memsets + made.memsets
        flops += 2 * rows * n * k
    other += rows * (2 * width + 2 * 5 * width + 2 * hidden + width)
    each = rows * data.itemsize
    # Projected queries, keys and values, later the hidden layer; the residual; and the normed data where that comes first.
    scratch = (each * max(3 * width, hidden), each * width, each * width)
    norm_first = bool(node.arg("norm_first"))
    return streaming(
        node,
        kernels=kernels + 1 + 4 + copies_data(node) + applies_gelu(node),
        memsets=memsets,
        flops=flops + other,
        matmul_flops=flops,
        kind="attention",
        math_dtype=data.dtype,
        scratch=scratch if norm_first else scratch[:2],
        passes=_layer(node, norm_first=norm_first),
    )


def copies_data(node: OpNode) -> bool:
    return bool(node.arg("norm_first")) and not node.tensor("src").is_contiguous


def applies_gelu(node: OpNode) -> bool:
    """Whether the activation is a kernel of its own."""
    return bool(node.arg("use_gelu")) and node.tensor("src").dtype == "float32"


def uses_cudnn(dtype: str, target: Target) -> bool:
    """Whether cuDNN's attention is chosen (``choose`` in ``optrace.tracing.standin.attention``, without a mask)."""
    return dtype in ("float16", "bfloat16") and target.capability >= (9, 0)


def _layer(node: OpNode, *, norm_first: bool) -> Iterator[Pass]:
    """The layer's kernels, one after the other. Temporaries are reused as the allocator reuses their blocks, and what is
    attended, or normed in the middle, lies where the result will."""
    data, result = whole(node.tensor("src")), whole(node.outputs[0])
    wide, residual, normed = 0, 1, 2

    def weights(*names: str) -> tuple[Operand, ...]:
        return tuple(whole(node.tensor(name)) for name in names)

    first, second = (weights(f"norm_weight_{number}", f"norm_bias_{number}") for number in (1, 2))
    source: Operand = data
    if norm_first:
        if copies_data(node):
            yield Pass((data,), (residual,))
        yield Pass((residual if copies_data(node) else data, *first), (normed,))
        source = normed
    yield Pass((source, *weights("qkv_weight", "qkv_bias")), (wide,), is_product=True)
    yield Pass((wide,), (result,), is_product=True)
    yield Pass((result, *weights("proj_weight", "proj_bias")), (residual,), is_product=True)
    yield Pass((residual, data), (residual,))
    middle: Operand = normed if norm_first else result
    yield Pass((residual, *(second if norm_first else first)), (middle,))
    yield Pass((middle, *weights("ffn_weight_1", "ffn_bias_1")), (wide,), is_product=True)
    if applies_gelu(node):
        yield Pass((wide,), (wide,))
    last: Operand = result if norm_first else residual
    yield Pass((wide, *weights("ffn_weight_2", "ffn_bias_2")), (last,), is_product=True)
    yield Pass((last, residual if norm_first else result), (last,))
    if not norm_first:
        yield Pass((residual, *second), (result,))


def _attention(data: TensorMeta, width: int, heads: int, target: Target) -> tuple[int, int, int, int]:
    """Kernels of both projections, memsets of them and of cuDNN's attention; matmul FLOPs with the attention's; FLOPs of bias and softmax."""
    batch, length = (data.shape[0], data.shape[1]) if len(data.shape) == 3 else (1, data.shape[0])
    rows = batch * length
    head = width // heads
    shape = Shape(batch, heads, heads, length, length, head, head)
    made = [plan(linear_gemm(rows, n, width, data.dtype), target) for n in (3 * width, width)]
    flops = 2 * rows * width * 4 * width + shape.forward_dims * shape.doubled_scores
    return (
        sum(p.kernels for p in made),
        sum(p.memsets for p in made) + uses_cudnn(data.dtype, target),
        flops,
        4 * rows * width + 5 * math.prod((batch, heads, length, length)),
    )


def _projected(data: TensorMeta, width: int) -> tuple[int, int]:
    """Bytes of queries, keys and values, and of what attention makes of them."""
    return 3 * data.numel // data.shape[-1] * width * data.itemsize, data.numel * data.itemsize


def linear_gemm(rows: int, n: int, k: int, dtype: str) -> Gemm:
    """The product of a linear layer, its bias in the epilogue."""
    return Gemm(rows, n, k, dtype, right_transposed=True, fused_bias=True)
