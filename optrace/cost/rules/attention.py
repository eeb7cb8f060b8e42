"""Fused scaled dot product attention: query x key and probabilities x value, nothing of size L x S kept.

What is launched depends on the backend, which the op's name tells. The cuDNN counts are those of every call of
the record (torch 2.11, H200); flash and memory-efficient backward follow PyTorch's sources.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from optrace.cost.profiles import Target
from optrace.cost.rules.table import rule, streaming
from optrace.cost.work import Work
from optrace.graph import OpNode, TensorMeta

#: FLOPs a score besides the products: scale, subtract the maximum, exponential, sum, divide; and backward.
_SOFTMAX_FLOPS, _SOFTMAX_BACKWARD_FLOPS = 5, 8
_HALVES = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Shape:
    """Attention of ``batch`` sequences: ``heads`` query heads over ``key_heads``, lengths and head sizes."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    dim: int
    value_dim: int
    causal: bool = False

    @property
    def scores(self) -> int:
        """Query-key pairs computed, over batch and heads. A causal mask leaves the lower triangle."""
        pairs = self.queries * self.keys
        if self.causal:
            short = min(self.queries, self.keys)
            pairs = short * (short + 1) // 2 + (self.queries - short) * self.keys
        return self.batch * self.heads * pairs

    @property
    def doubled_scores(self) -> int:
        """Twice the pairs that papers count: under a causal mask half of the square, so half of its diagonal."""
        diagonal = min(self.queries, self.keys) if self.causal else 0
        return 2 * self.scores - self.batch * self.heads * diagonal

    @property
    def forward_dims(self) -> int:
        """Multiply-adds a pair: two products."""
        return self.dim + self.value_dim

    @property
    def backward_dims(self) -> int:
        """Multiply-adds a pair: the scores again, and gradients of probabilities, query, key and value."""
        return 3 * self.dim + 2 * self.value_dim


def heads_first(node: OpNode) -> Shape:
    """The shape of a ``_scaled_dot_product_*`` call: ``[batch, heads, length, dim]``."""
    query, key, value = node.tensor("query"), node.tensor("key"), node.tensor("value")
    return Shape(
        batch=math.prod(query.shape[:-3]),
        heads=query.shape[-3],
        key_heads=key.shape[-3],
        queries=query.shape[-2],
        keys=key.shape[-2],
        dim=query.shape[-1],
        value_dim=value.shape[-1],
        causal=bool(node.arg("is_causal", False)),
    )


def length_first(node: OpNode) -> Shape:
    """The shape of a ``_flash_attention_*`` or ``_efficient_attention_*`` call: ``[batch, length, heads, dim]``.

    Packed sequences are ``[total, heads, dim]`` (or batch 1) with cumulative lengths, whose values are not known:
    each sequence counts as long as the longest, an upper bound.
    """
    query, key, value = node.tensor("query"), node.tensor("key"), node.tensor("value")
    flash = "_flash_" in node.op
    ends = node.arg("cum_seq_q" if flash else "cu_seqlens_q")
    queries, keys = query.shape[-3], key.shape[-3]
    batch = query.shape[0] if len(query.shape) == 4 else 1
    if isinstance(ends, TensorMeta):
        batch = ends.numel - 1
        longest = (
            node.arg("max_q" if flash else "max_seqlen_q"),
            node.arg("max_k" if flash else "max_seqlen_k"),
        )
        queries, keys = (
            known if isinstance(known, int) else total
            for known, total in zip(longest, (queries, keys), strict=True)
        )
    masked = node.arg("is_causal", False) if flash else node.arg("custom_mask_type", 0)
    return Shape(
        batch=batch,
        heads=query.shape[-2],
        key_heads=key.shape[-2],
        queries=queries,
        keys=keys,
        dim=query.shape[-1],
        value_dim=value.shape[-1],
        causal=bool(masked),
    )


@rule("aten._scaled_dot_product_cudnn_attention")
def attends_by_cudnn(node: OpNode, target: Target) -> Work:
    """One fused kernel. Hopper's takes its tiles from a counter, zeroed by a 4-byte memset. A single query
    (decoding) goes to an older kernel that splits the keys where batch x heads leaves SMs idle, and reduces.
    With dropout a kernel first unpacks seed and offset for cuDNN (attention.cu)."""
    shape = heads_first(node)
    drops = _drops(node)
    if shape.queries == 1:
        splits_keys = shape.batch * shape.heads < target.sm_count
        return _forward(node, shape, kernels=1 + splits_keys + drops)
    return _forward(node, shape, kernels=1 + drops, memsets=int(target.capability >= (9, 0)))


@rule("aten._scaled_dot_product_efficient_attention")
def attends_in_one_kernel(node: OpNode, target: Target) -> Work:
    """CUTLASS's fused kernel (attention.cu)."""
    shape = heads_first(node)
    return _forward(node, shape, spilled=_spilled_by_cutlass(node, shape, target))


@rule("aten._scaled_dot_product_flash_attention_for_cpu")
def attends_on_the_cpu(node: OpNode, _target: Target) -> Work:
    """The same arithmetic in the CPU's fused kernel (FlashAttentionKernel.cpp)."""
    return _forward(node, heads_first(node))


@rule("aten._scaled_dot_product_flash_attention_for_cpu_backward")
def attends_backward_on_the_cpu(node: OpNode, _target: Target) -> Work:
    return _backward(node, heads_first(node), kernels=1)


@rule("aten._scaled_dot_product_flash_attention")
def attends_by_flash(node: OpNode, target: Target) -> Work:
    """One kernel; few query blocks split the keys and combine (flash_api.cpp)."""
    shape = heads_first(node)
    return _forward(node, shape, kernels=1 + _flash_combines(node, shape, target))


@rule("aten._flash_attention_forward")
def attends_by_flash_length_first(node: OpNode, target: Target) -> Work:
    shape = length_first(node)
    packed = isinstance(node.arg("cum_seq_q"), TensorMeta)
    return _forward(node, shape, kernels=1 + (not packed and _flash_combines(node, shape, target)))


@rule("aten._efficient_attention_forward")
def attends_length_first(node: OpNode, target: Target) -> Work:
    shape = length_first(node)
    return _forward(node, shape, spilled=_spilled_by_cutlass(node, shape, target))


@rule("aten._scaled_dot_product_cudnn_attention_backward")
def attends_backward_by_cudnn(node: OpNode, target: Target) -> Work:
    """A dot of output and its gradient, the fused kernel, the query gradient from float32 to 16 bits; a memset of
    the tile counter before. Shared key heads: one reduction each for the key and value gradients."""
    shape = heads_first(node)
    return _gathering_backward(node, shape, memsets=int(target.capability >= (9, 0)))


@rule("aten._scaled_dot_product_flash_attention_backward")
def attends_backward_by_flash(node: OpNode, _target: Target) -> Work:
    """Dot of output and gradient, the fused kernel, the query gradient's conversion; shared key heads are summed
    up by one reduction each (flash_api.cpp)."""
    return _gathering_backward(node, heads_first(node))


@rule("aten._flash_attention_backward")
def attends_backward_by_flash_length_first(node: OpNode, _target: Target) -> Work:
    return _gathering_backward(node, length_first(node))


@rule("aten._scaled_dot_product_efficient_attention_backward")
def attends_backward_by_cutlass(node: OpNode, _target: Target) -> Work:
    return _cutlass_backward(node, heads_first(node))


@rule("aten._efficient_attention_backward")
def attends_backward_by_cutlass_length_first(node: OpNode, _target: Target) -> Work:
    return _cutlass_backward(node, length_first(node))


def _forward(node: OpNode, shape: Shape, *, kernels: int = 1, memsets: int = 0, spilled: int = 0) -> Work:
    return streaming(
        node,
        kernels=kernels,
        memsets=memsets,
        flops=(2 * shape.forward_dims + _SOFTMAX_FLOPS) * shape.scores,
        matmul_flops=shape.forward_dims * shape.doubled_scores,
        kind="attention",
        math_dtype=node.tensor("query").dtype,
        spilled=spilled,
    )


def _backward(
    node: OpNode, shape: Shape, *, kernels: int, memsets: int = 0, scratch: tuple[int, ...] = ()
) -> Work:
    return streaming(
        node,
        kernels=kernels,
        memsets=memsets,
        flops=(2 * shape.backward_dims + _SOFTMAX_BACKWARD_FLOPS) * shape.scores,
        matmul_flops=shape.backward_dims * shape.doubled_scores,
        kind="attention",
        math_dtype=node.tensor("query").dtype,
        scratch=scratch,
    )


def _gathering_backward(node: OpNode, shape: Shape, *, memsets: int = 0) -> Work:
    """Three kernels, and a sum over the query heads that share a key head for each of two gradients. The query
    gradient is gathered in float32; shared gradients are written for every query head first."""
    gathered = shape.batch * shape.heads * shape.queries * shape.dim * 4
    if shape.key_heads == shape.heads:
        return _backward(node, shape, kernels=3, memsets=memsets, scratch=(gathered,))
    itemsize = node.tensor("query").itemsize
    repeated = [
        shape.batch * shape.heads * shape.keys * dim * itemsize for dim in (shape.dim, shape.value_dim)
    ]
    return _backward(node, shape, kernels=3 + 2, memsets=memsets, scratch=(gathered, *repeated))


def _cutlass_backward(node: OpNode, shape: Shape) -> Work:
    """_efficient_attention_backward in attention_backward.cu.

    The kernel shares out blocks of keys and adds up the query gradient in a workspace, a lock of 16 bytes a tile; with
    more than one share this is zeroed first. float32 multiplies the output by its gradient before, sums that over the
    head and copies the sums transposed, which half precision does in the kernel.
    """
    half = node.tensor("query").dtype in _HALVES
    widest = max(shape.dim, shape.value_dim)
    sequences = shape.batch * shape.heads
    block = 128 if half and 96 < widest <= 128 else 64
    shares = math.ceil(shape.keys / block)
    if sequences >= 256 and shape.keys <= 2 * block:
        shares = 1
    if half and widest > 128:
        shares = min(shares, max(1, 200 // sequences))
    query_block = 128 if 64 < widest <= 128 else 64
    tiles = sequences * math.ceil(shape.queries / query_block) * math.ceil(shape.dim / block)
    gathered = tiles * (4 * query_block * block + 16)
    if half:
        return _backward(node, shape, kernels=1 + (shares > 1), scratch=(gathered,))
    transposes = shape.heads > 1 and shape.queries > 1
    product = shape.batch * shape.queries * shape.heads * shape.value_dim * 4
    return _backward(node, shape, kernels=3 + transposes + (shares > 1), scratch=(product, gathered))


#: Registers that a thread of CUTLASS's float32 forward kernel spills, in bytes, and the queries of a CTA, by the largest
#: value size that it takes (None: any); ``cuobjdump -res-usage`` on torch 2.11's library for compute capability 9.0.
_SPILLS_BY_VALUE_DIM: tuple[tuple[int | None, int, int], ...] = ((64, 344, 64), (128, 0, 64), (None, 216, 32))
#: Its threads a CTA, and CTAs that an SM holds: 168 registers a thread.
_CUTLASS_THREADS, _CUTLASS_CTAS_AN_SM = 128, 3


def _spilled_by_cutlass(node: OpNode, shape: Shape, target: Target) -> int:
    """Local memory of the threads that are resident at once."""
    if node.tensor("query").dtype != "float32":
        return 0
    _, stack, queries = next(
        row for row in _SPILLS_BY_VALUE_DIM if row[0] is None or shape.value_dim <= row[0]
    )
    ctas = shape.batch * shape.heads * math.ceil(shape.queries / queries)
    return min(ctas, _CUTLASS_CTAS_AN_SM * target.sm_count) * _CUTLASS_THREADS * stack


def _drops(node: OpNode) -> int:
    return int(bool(node.arg("dropout_p", 0.0)))


def _flash_combines(node: OpNode, shape: Shape, target: Target) -> int:
    """Whether flash attention splits the keys (num_splits_heuristic in flash_api.cpp): without dropout, where
    blocks of 64 queries leave SMs idle, into the fewest parts that come within 85 % of the best occupation."""
    if _drops(node):
        return 0
    blocks = shape.batch * shape.heads * math.ceil(shape.queries / 64)
    slots = 2 * target.sm_count
    if blocks >= 0.8 * slots:
        return 0
    key_block = 256 if shape.dim <= 64 else 128 if shape.dim <= 128 else 64
    key_blocks = math.ceil(shape.keys / key_block)

    def occupied(splits: int) -> float:
        waves = blocks * splits / slots
        return waves / math.ceil(waves)

    eligible = [
        splits
        for splits in range(1, min(128, slots, key_blocks) + 1)
        if splits == 1 or math.ceil(key_blocks / splits) != math.ceil(key_blocks / (splits - 1))
    ]
    best = max(map(occupied, eligible))
    return int(next(s for s in eligible if occupied(s) >= 0.85 * best) > 1)
