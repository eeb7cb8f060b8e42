"""Gathers and scatters of rows or elements, scans, sorts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from optrace.cost.device.kernel import MEMSET, SMALL, Kernel, Launch, launches
from optrace.cost.device.streams import STRIDED_BLOCK, copy, flat, over
from optrace.cost.profiles import Target
from optrace.cost.rules.gather import elements_filled, mask_to_fill
from optrace.cost.work import Work
from optrace.graph import OpNode


def _rest(work: Work, count: int) -> list[Launch]:
    """The launches beside ``count`` that matter little: positions, counts, flags."""
    small = max(0, (work.kernels or 0) - count)
    return [*[SMALL] * small, *[MEMSET] * work.memsets, *[Kernel("across")] * work.memcpys]


@launches(
    "aten.embedding", "aten.index_select", "aten.gather", "aten.take", "aten.index", "aten._unsafe_index"
)
def gathers(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    """Rows of 16 bytes and more are copied by a block each (``vectorized_gather_kernel``), else an element at a
    time."""
    result = node.outputs[0]
    nbytes = float(work.tensor_bytes)
    table = node.inputs[0]
    row = table.shape[-1] * table.itemsize if table.shape else 1
    rows = result.numel // max(1, table.shape[-1] if table.shape else 1)
    one_dim = node.facts.packet not in ("aten.gather", "aten.take") and len(table.shape) == 2
    if one_dim and result.shape[-1:] == table.shape[-1:] and row % 16 == 0 and rows > 1:
        return [*_rest(work, 1), Kernel("gather_rows", nbytes, rows, row / 4096)]
    return [*_rest(work, 1), Kernel("gather", nbytes, result.numel / STRIDED_BLOCK, 1)]


@launches("aten._embedding_bag", "aten._embedding_bag_forward_only")
def bags(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    result = node.outputs[0]
    indices = node.inputs[1]
    each = indices.numel / max(1, result.shape[0])
    return [*_rest(work, 1), Kernel("bags", float(work.tensor_bytes), result.numel / 256, each)]


@launches(
    "aten.index_add", "aten.index_add_", "aten.scatter", "aten.scatter_", "aten.scatter_add", "aten.scatter_add_",
    "aten.index_copy", "aten.index_copy_", "aten.index_put", "aten.index_put_", "aten._index_put_impl_",
    "aten._unsafe_index_put", "aten.scatter_reduce", "aten.scatter_reduce_", "aten.index_fill", "aten.index_fill_",
)  # fmt: skip
def scatters(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    own, filled = node.inputs[0], elements_filled(node)
    first: list[Launch] = [] if any(node.writes) else [copy(own, node.outputs[0])]
    mask = mask_to_fill(node)
    if mask is not None:
        fill = over(own.shape, own, mask)
        return [*first, replace(fill, nbytes=fill.nbytes + own.nbytes)]
    adds = "add" in node.op or (bool(node.arg("accumulate", False)) and (work.kernels or 0) < 4)
    nbytes = 3.0 * filled * own.itemsize + 8.0 * filled / max(1, own.shape[-1] if own.shape else 1)
    kernel = Kernel("scatter_add" if adds else "scatter", nbytes, filled / STRIDED_BLOCK, 1)
    rest = (work.launches or 0) - len(first) - 1
    return [*first, *[SMALL] * max(0, rest), kernel]


@launches(
    "aten.embedding_dense_backward", "aten._embedding_bag_dense_backward", "aten._embedding_bag_backward"
)
def adds_rows(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    gradient, result = node.inputs[0], node.outputs[0]
    row = gradient.shape[-1]
    rows = gradient.numel / max(1, row)
    nbytes = 3.0 * gradient.nbytes
    if (work.launches or 0) <= 3:
        return [flat("fill", result), Kernel("add_rows", nbytes, row / 32, rows)]
    small = (work.launches or 0) - 2
    return [
        flat("fill", result),
        *[SMALL] * small,
        Kernel("scatter", nbytes, gradient.numel / STRIDED_BLOCK, 1),
    ]


@launches("aten.cumsum", "aten.cumprod", "aten.cumsum_", "aten.cumprod_", "aten.logcumsumexp")
def scans(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    source = node.inputs[0]
    result = node.outputs[0]
    dim = node.arg("dim", -1)
    rank = max(1, len(source.shape))
    dim = dim % rank if isinstance(dim, int) else rank - 1
    row = source.shape[dim] if source.shape else 1
    rows = source.numel / max(1, row)
    nbytes = 2.0 * result.nbytes
    first: list[Launch] = []
    if source.dtype != result.dtype:
        first = [Kernel("cast", float(source.nbytes + result.nbytes), source.numel / STRIDED_BLOCK, 1)]
    inner = math.prod(source.shape[dim + 1 :])
    if inner > 1:
        return [*first, Kernel("scan_outer", nbytes, rows / STRIDED_BLOCK, row)]
    if rows == 1:
        return [*first, *[SMALL] * ((work.kernels or 1) - 1 - len(first)), Kernel("vectorized", nbytes)]
    return [*first, Kernel("scan_rows", nbytes, rows, row / 1024)]


@launches("aten.nll_loss_forward", "aten.nll_loss2d_forward")
def picks(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    scores = node.inputs[0]
    rows = scores.shape[0] if len(scores.shape) > 1 else 1
    return [*_rest(work, 1), Kernel("pick", 0.0, 1, rows / 32)]


@launches("aten.sort", "aten.argsort", "aten.topk", "aten.randperm", "aten.nonzero", "aten.unique", "aten._unique2", "aten.multinomial", "aten.bincount", "aten.histc")  # fmt: skip
def sorts(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    """Every pass goes over the data; a pass a kernel."""
    source = node.inputs[0] if node.inputs else node.outputs[0]
    count = max(1, work.kernels or 1)
    passes = Kernel("sort", 2.0 * source.nbytes, source.numel / STRIDED_BLOCK, 1)
    return [*[passes] * count, *[MEMSET] * work.memsets, *[Kernel("across")] * work.memcpys]
