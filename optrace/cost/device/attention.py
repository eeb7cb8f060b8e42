"""Fused attention: a block a tile of queries walks over the keys."""

from __future__ import annotations

import math
from collections.abc import Sequence

from optrace.cost.device.kernel import MEMSET, SMALL, Kernel, Launch, Product, launches
from optrace.cost.profiles import Target
from optrace.cost.rules.attention import Shape, heads_first, length_first
from optrace.cost.work import Work
from optrace.graph import OpNode


def _backend(op: str) -> str:
    return "cudnn" if "cudnn" in op else "flash" if "flash" in op else "efficient"


#: Head sizes above this are accumulated in global memory by the memory-efficient kernel.
WIDE_HEAD = 128
#: Head sizes up to this have cuDNN kernels of their own, which keep the matrix units less busy.
_NARROW_HEAD = 64
#: Keys of a block of the memory-efficient backward kernel.
_KEY_BLOCK = 64


def fused(shape: Shape, kind: str, dtype: str, nbytes: float, products: float) -> Product:
    """The fused kernel: for each query ``products`` multiply-adds a key and head element."""
    keys = shape.scores / max(1, shape.batch * shape.heads * shape.queries)
    width = (shape.dim + shape.value_dim) / 2
    return Product(kind, dtype, shape.queries, width * products, keys, shape.batch * shape.heads, nbytes)


def fused_forward(shape: Shape, kind: str, dtype: str, nbytes: float) -> Product:
    """Query times key, probabilities times value."""
    if kind == "attention_efficient" and max(shape.dim, shape.value_dim) > WIDE_HEAD:
        kind = "attention_efficient_wide"
    return fused(shape, _by_width(shape, kind), dtype, nbytes, 2.0)


def _by_width(shape: Shape, kind: str) -> str:
    """cuDNN's kernels go by the head size."""
    wide = max(shape.dim, shape.value_dim) > _NARROW_HEAD
    return f"{kind}_wide" if wide and kind.startswith("attention_cudnn") else kind


@launches(
    "aten._scaled_dot_product_cudnn_attention", "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_flash_attention",
)  # fmt: skip
def attends(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    return _forward(node, work, heads_first(node))


@launches("aten._flash_attention_forward", "aten._efficient_attention_forward")
def attends_length_first(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    return _forward(node, work, length_first(node))


def _forward(node: OpNode, work: Work, shape: Shape) -> Sequence[Launch]:
    kind = f"attention_{_backend(node.op)}"
    if shape.queries == 1:
        kind = "attention_decode"
    spare = (work.kernels or 1) - 1
    return [
        *[MEMSET] * work.memsets,
        fused_forward(shape, kind, node.tensor("query").dtype, float(work.tensor_bytes)),
        *[SMALL] * spare,
    ]


@launches(
    "aten._scaled_dot_product_cudnn_attention_backward", "aten._scaled_dot_product_efficient_attention_backward",
    "aten._scaled_dot_product_flash_attention_backward",
)  # fmt: skip
def attends_backward(node: OpNode, work: Work, target: Target) -> Sequence[Launch]:
    return _backward(node, work, heads_first(node), target)


@launches("aten._flash_attention_backward", "aten._efficient_attention_backward")
def attends_backward_length_first(node: OpNode, work: Work, target: Target) -> Sequence[Launch]:
    return _backward(node, work, length_first(node), target)


def _backward(node: OpNode, work: Work, shape: Shape, target: Target) -> Sequence[Launch]:
    kind = _by_width(shape, f"attention_{_backend(node.op)}_backward")
    itemsize = node.tensor("query").itemsize
    rows = shape.batch * shape.heads * shape.queries
    others = [Kernel("rows", 2.0 * rows * shape.dim * itemsize, rows / 64, 1)] * ((work.kernels or 1) - 1)
    if _backend(node.op) == "cudnn" and len(others) == 2:
        # The sum over gradient times output; the query's gradient from float32.
        elements = float(rows * shape.dim)
        others = [
            Kernel("attention_dot", 2 * elements * itemsize),
            Kernel("attention_convert", elements * (4 + itemsize)),
        ]
    if kind == "attention_efficient_backward" and node.tensor("query").dtype == "float32":
        return _backward_in_float32(work, shape, target)
    main = fused(shape, kind, node.tensor("query").dtype, float(work.tensor_bytes), 5.0)
    return [*[MEMSET] * work.memsets, main, *others]


def _backward_in_float32(work: Work, shape: Shape, target: Target) -> Sequence[Launch]:
    """Output times gradient, its sums and their copy, the workspace zeroed, then blocks of keys that walk over the queries:
    five products with a step of them, one after the other. The longest walk counts where each has an SM of its own."""
    product, gathered = work.scratch
    sequences = shape.batch * shape.heads
    alone = sequences * math.ceil(shape.keys / _KEY_BLOCK) <= target.sm_count
    walked = shape.queries if alone else shape.scores / max(1, sequences * shape.keys)
    width = (shape.dim + shape.value_dim) / 2
    rest = (work.kernels or 0) - 3
    return [
        Kernel("vectorized", 3.0 * product),
        Kernel("reduce_rows", float(product), 0.0, 1.0),
        *[Kernel("fill", float(gathered)), SMALL][:rest],
        Product(
            "attention_efficient_backward_float32", "float32", shape.keys, width, 5.0 * walked, sequences,
            float(work.tensor_bytes),
        ),
    ]  # fmt: skip
