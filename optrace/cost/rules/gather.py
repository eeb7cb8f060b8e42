"""Gathers and scatters: only the rows that are asked for are read."""

from __future__ import annotations

from dataclasses import replace

from optrace.cost.profiles import Target
from optrace.cost.rules.table import inputs_read, on_device, outputs_written, rule, streaming
from optrace.cost.work import Access, Work
from optrace.graph import OpNode, TensorMeta, tensors_in


def _selected(node: OpNode, source: TensorMeta) -> list[Access]:
    """Reads where ``source`` gives at most as many bytes as the output takes."""
    taken = sum(access.nbytes for access in outputs_written(node))
    return [
        replace(access, nbytes=min(access.nbytes, taken)) if access.tensor.id == source.id else access
        for access in inputs_read(node)
    ]


@rule("aten.embedding", "aten.index_select", "aten.gather", "aten.take")
def reads_only_selected_rows(node: OpNode, _target: Target) -> Work:
    """One kernel; a gather does no arithmetic (Indexing.cu, ScatterGatherKernel.cu)."""
    return streaming(node, reads=_selected(node, node.inputs[0]), kind="gather")


@rule("aten.index", "aten._unsafe_index")
def indexes(node: OpNode, _target: Target) -> Work:
    """One kernel. A boolean mask is turned into positions first, whose number the host waits for (Nonzero.cu)."""
    masks = [t for t in tensors_in(node.arg("indices")) if t.dtype in ("bool", "uint8")]
    return streaming(
        node,
        kernels=1 + 3 * len(masks),
        memcpys=len(masks),
        reads=_selected(node, node.inputs[0]),
        kind="gather",
        host_wait=bool(masks),
    )


@rule("aten.nonzero")
def finds_nonzero(node: OpNode, _target: Target) -> Work:
    """Count, copy the count to the host, compact, write positions (Nonzero.cu)."""
    return streaming(node, kernels=3, memcpys=1, flops=node.inputs[0].numel, kind="gather", host_wait=True)


@rule("aten.masked_select")
def selects_by_mask(node: OpNode, _target: Target) -> Work:
    """The mask's nonzero positions, then a gather (TensorAdvancedIndexing.cpp)."""
    return streaming(node, kernels=4, memcpys=1, kind="gather", host_wait=True)


@rule("aten.unique_consecutive", "aten._unique2", "aten.unique_dim")
def finds_unique(node: OpNode, _target: Target) -> Work:
    """Sort, mark, compact; the host waits for the number found (Unique.cu). The launches are an estimate."""
    return streaming(node, kernels=8, memcpys=1, flops=None, kind="gather", host_wait=True)


@rule(
    "aten.index_add",
    "aten.index_add_",
    "aten.scatter_add",
    "aten.scatter_add_",
    "aten.scatter",
    "aten.scatter_",
    "aten.scatter_reduce",
    "aten.scatter_reduce_",
    "aten.index_copy",
    "aten.index_copy_",
    "aten.index_fill_",
    "aten.index_put",
    "aten.index_put_",
    "aten._index_put_impl_",
    "aten.masked_scatter",
    "aten.masked_scatter_",
    "aten._unsafe_index_put",
)
def scatters(node: OpNode, _target: Target) -> Work:
    """Writes only the places that the source fills; an out-of-place form copies its input first. One FLOP an
    element where values accumulate. An accumulating ``index_put`` sorts its indices (Indexing.cu)."""
    target, others = node.inputs[0], [t for t in node.inputs[1:] if on_device(t)]
    filled = max((t.nbytes for t in others if t.dtype == target.dtype), default=target.nbytes)
    accumulates = bool(node.arg("accumulate", False)) or "add" in node.op or "reduce" in node.op
    out_of_place = not node.facts.packet.endswith("_")
    reads = [
        replace(access, nbytes=min(access.nbytes, filled))
        if access.tensor.id == target.id and not out_of_place
        else access
        for access in inputs_read(node)
        if access.tensor.id != target.id or accumulates or out_of_place
    ]
    writes = [
        access if out_of_place else replace(access, nbytes=min(access.nbytes, filled))
        for access in outputs_written(node)
    ]
    kernels = 1
    if "index_put" in node.op and accumulates:
        kernels = 8
    return streaming(
        node,
        kernels=kernels,
        memcpys=1 if out_of_place else 0,
        reads=reads,
        writes=writes,
        flops=filled // max(1, target.itemsize) if accumulates else 0,
        kind="gather",
    )


@rule("aten.embedding_dense_backward")
def adds_rows(node: OpNode, _target: Target) -> Work:
    """Zero the table's gradient, then add each gradient row; long index lists are sorted first
    (Embedding.cu: above 3,072 indices)."""
    gradient, indices = node.inputs[:2]
    sorted_first = indices.numel > 3072
    return streaming(node, kernels=10 if sorted_first else 2, flops=gradient.numel, kind="gather")


@rule("aten._embedding_bag", "aten._embedding_bag_forward_only")
def sums_bags_of_rows(node: OpNode, _target: Target) -> Work:
    """Reads a row an index, adds it to its bag (EmbeddingBag.cu)."""
    table, indices = node.inputs[:2]
    row = table.shape[-1] * table.itemsize
    reads = [
        replace(access, nbytes=min(access.nbytes, indices.numel * row))
        if access.tensor.id == table.id
        else access
        for access in inputs_read(node)
    ]
    return streaming(node, reads=reads, flops=indices.numel * table.shape[-1], kind="gather")
