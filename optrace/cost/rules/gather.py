"""Gathers and scatters: only the rows that are asked for are read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from optrace.cost.profiles import Target
from optrace.cost.rules import radix
from optrace.cost.rules.layouts import contiguous, contiguous_copies, contiguous_kernels, copy_launches
from optrace.cost.rules.reduce_config import reduction
from optrace.cost.rules.table import inputs_read, on_device, outputs_written, rule, schema_default, streaming
from optrace.cost.rules.tensor_iterator import broadcast_numel, kernels_over
from optrace.cost.sectors import FETCH
from optrace.cost.work import FREE, Access, Pass, Work
from optrace.graph import OpNode, TensorMeta, tensors_in


def distinct_bytes(tensor: TensorMeta, drawn: int) -> int:
    """Bytes of a tensor that ``drawn`` bytes of rows hit, where an index whose values are not known picks them at random,
    some more than once; as many rows as there are count as each of them once."""
    whole = tensor.nbytes
    return whole if drawn == whole or not whole else round(whole * -math.expm1(-drawn / whole))


#: Bytes of each row that all blocks of a gather of rows pass over before they go on (``vectorized_gather_kernel_launch``:
#: 256 threads of 16 bytes).
GATHERED_AT_ONCE = 4096


def _selected(node: OpNode, source: TensorMeta, target: Target, *, once: bool = False) -> list[Access]:
    """Reads where ``source`` gives rows for all that is written; ``once``: none of them twice. A row that is picked again
    is found in the L2 if what is gathered meanwhile fits it."""
    taken = sum(access.nbytes for access in outputs_written(node))
    indices = [
        tensor.shape
        for tensor in node.inputs
        if tensor.id != source.id and tensor.dtype in ("int64", "int32")
    ]
    picks = broadcast_numel(*indices)
    meanwhile = min(taken, picks * GATHERED_AT_ONCE)
    repeats_are_free = not once and meanwhile <= target.l2_bytes
    found = distinct_bytes(source, taken) if repeats_are_free else min(source.nbytes, taken)
    return _reading(node, source, Access(source, found))


def _reading(node: OpNode, source: TensorMeta, part: Access) -> list[Access]:
    """All that the call reads, of ``source`` only that part."""
    return [part if access.tensor.id == source.id else access for access in inputs_read(node)]


@rule("aten.embedding", "aten.index_select")
def reads_only_selected_rows(node: OpNode, target: Target) -> Work:
    """One kernel; a gather does no arithmetic (Indexing.cu)."""
    return streaming(node, reads=_selected(node, node.inputs[0], target), kind="gather")


@rule("aten.gather", "aten.take")
def reads_selected_elements(node: OpNode, _target: Target) -> Work:
    """One kernel; each element comes with its sector (ScatterGatherKernel.cu, Indexing.cu). Along the fastest
    dimension a row's sectors stay in the L2 until all of them are used."""
    source, index = node.inputs[:2]
    return streaming(node, reads=_reading(node, source, _elements(node, source, index.numel)), kind="gather")


def _elements(node: OpNode, tensor: TensorMeta, count: int) -> Access:
    """``count`` elements of a tensor that an index picks along a dimension; along any but the fastest, neighbours in
    the index lie rows apart."""
    dim = node.arg("dim")
    in_order = isinstance(dim, int) and (not tensor.shape or tensor.stride[dim] == 1)
    return Access(tensor, min(tensor.nbytes, count * FETCH), 0 if in_order else count)


def nonzero_kernels(mask: TensorMeta) -> int:
    """Count, compact, and turn positions into coordinates where there is more than one (Nonzero.cu). The count
    comes to the host in between: a memcpy beside these kernels, and a wait."""
    count = radix.reduce(mask.numel) + (radix.select(mask.numel) if mask.shape else 0)
    return count + (len(mask.shape) > 1) + contiguous_kernels(mask)


def _masks(indices: object) -> list[TensorMeta]:
    """Boolean indices, which are turned into positions first (``expandTensors`` in IndexingUtils.h)."""
    found = tensors_in(indices) if isinstance(indices, tuple | TensorMeta) else ()
    return [tensor for tensor in found if tensor.dtype in ("bool", "uint8")]


@rule("aten.index", "aten._unsafe_index")
def indexes(node: OpNode, target: Target) -> Work:
    """One kernel, after the positions of boolean masks, whose number the host waits for (IndexKernel.cu)."""
    masks = _masks(node.arg("indices"))
    over_result = sum(kernels_over(out.shape, out) for out in node.outputs)
    return streaming(
        node,
        kernels=over_result + sum(nonzero_kernels(mask) for mask in masks),
        memcpys=len(masks),
        reads=_selected(node, node.inputs[0], target, once=bool(masks)),
        kind="gather",
        host_wait=bool(masks),
    )


@rule("aten.nonzero")
def finds_nonzero(node: OpNode, _target: Target) -> Work:
    """Count, copy the count to the host, compact, write coordinates (Nonzero.cu)."""
    source = node.inputs[0]
    if not source.numel:
        return FREE
    return streaming(
        node,
        kernels=nonzero_kernels(source),
        memcpys=1,
        flops=source.numel,
        kind="gather",
        host_wait=True,
        rereads=(Access(source, source.nbytes),),
    )


@rule("aten.nonzero_static")
def finds_so_many_nonzero(node: OpNode, _target: Target) -> Work:
    """Block sums, their scan, compaction, filling up, coordinates: the host does not wait (Nonzero.cu)."""
    source = node.inputs[0]
    return streaming(
        node,
        kernels=4 + (len(source.shape) > 1) + contiguous_kernels(source),
        flops=source.numel,
        kind="gather",
    )


@rule("aten.masked_select")
def selects_by_mask(node: OpNode, _target: Target) -> Work:
    """The mask's nonzero positions, then a gather (IndexKernel.cpp)."""
    source, mask = node.inputs[:2]
    shape = source.shape if source.numel >= mask.numel else mask.shape
    positions = nonzero_kernels(
        replace(mask, shape=shape, stride=contiguous(replace(mask, shape=shape)).stride)
    )
    taken = sum(access.nbytes for access in outputs_written(node))
    return streaming(
        node,
        kernels=positions + 1,
        memcpys=1,
        reads=[Access(source, min(source.nbytes, taken)), Access(mask, mask.nbytes)],
        flops=mask.numel,
        kind="gather",
        host_wait=True,
    )


@rule("aten.masked_scatter", "aten.masked_scatter_")
def fills_in_order_of_the_mask(node: OpNode, _target: Target) -> Work:
    """A scan of the mask numbers its places; a check of the source's size; one pass (IndexKernel.cu). The
    out-of-place form clones first."""
    source, mask = node.inputs[:2]
    kernels, memcpys = _clone(node)
    return streaming(
        node,
        kernels=kernels + radix.scan(mask.numel) + 2,
        memcpys=memcpys,
        flops=mask.numel,
        kind="gather",
        scratch=(8 * source.numel,),
    )


def _clones(node: OpNode) -> bool:
    """An out-of-place form copies its first input and changes the copy."""
    return not node.facts.packet.endswith("_") and bool(node.outputs)


def _clone(node: OpNode) -> tuple[int, int]:
    """(kernels, memcpys) of the copy that an out-of-place form makes of its first input."""
    return copy_launches(node.inputs[0], node.outputs[0]) if _clones(node) else (0, 0)


def _scattered(
    node: OpNode, filled: int, *, reads_own: bool, scattered: int = 0
) -> tuple[list[Access], list[Access], tuple[Pass, ...]]:
    """Reads, writes and passes of an op that touches ``filled`` bytes of its first input, or of a clone of it.
    ``reads_own``: it reads them before it writes them."""
    target = node.inputs[0]
    others = [access for access in inputs_read(node) if access.tensor.id != target.id]
    if not _clones(node):
        part = Access(target, min(target.nbytes, filled), scattered)
        reads = [part, *others] if reads_own or scattered else others
        return reads, [part], (Pass(tuple(reads), (part,)),)
    result = node.outputs[0]
    part = Access(result, min(result.nbytes, filled), scattered)
    own, written = Access(target, target.nbytes), Access(result, result.nbytes)
    copied = Pass((own,), (written,), is_copy=_clone(node)[1] > 0)
    changed = Pass((*others, part) if reads_own or scattered else tuple(others), (part,))
    return [own, *others], [written], (copied, changed)


@rule(
    "aten.index_add",
    "aten.index_add_",
    "aten.index_copy",
    "aten.index_copy_",
    "aten.index_fill",
    "aten.index_fill_",
    "aten.index_reduce",
    "aten.index_reduce_",
    "aten.put_",
    "aten.scatter",
    "aten.scatter_",
    "aten.scatter_add",
    "aten.scatter_add_",
    "aten.scatter_reduce",
    "aten.scatter_reduce_",
)
def scatters(node: OpNode, _target: Target) -> Work:
    """One kernel that writes only the places that the source fills; an out-of-place form clones its input first. One
    FLOP an element where values accumulate (ScatterGatherKernel.cu, Indexing.cu). Elements written in no order are parts of
    sectors, which are read first.

    ``scatter_reduce`` without ``include_self`` writes neutral values first; a mean counts what it adds up,
    fills in ones, and divides (TensorAdvancedIndexing.cpp).
    """
    target, index, filled = node.inputs[0], node.tensor("index"), elements_filled(node)
    packet = node.facts.packet
    reduces = "reduce" in packet or node.arg("reduce") is not None
    accumulates = "add" in packet or reduces or bool(node.arg("accumulate", False))
    extra = 0
    if "scatter_reduce" in packet:
        extra = (not node.arg("include_self", True)) + (6 if node.arg("reduce") == "mean" else 0)
    by_element = _elements(node, target, index.numel).scattered if "scatter" in packet else 0
    reads, writes, passes = _scattered(
        node, filled * target.itemsize, reads_own=accumulates, scattered=by_element
    )
    kernels, memcpys = _clone(node)
    return streaming(
        node,
        kernels=kernels + 1 + extra,
        memcpys=memcpys,
        reads=reads,
        writes=writes,
        passes=passes,
        flops=filled if accumulates else 0,
        kind="gather",
    )


def elements_filled(node: OpNode) -> int:
    """Elements that a scatter writes, each as often as it is written: one an index of ``scatter`` and ``put_``, a slice
    an index of ``index_add`` and its like, all that the indices of ``index_put`` meet."""
    own, index = node.inputs[0], node.arg("index")
    if not isinstance(index, TensorMeta):
        return _elements_put(node)
    if ".index_" not in node.op:
        return index.numel
    dim = node.arg("dim", 0)
    size = own.shape[dim] if isinstance(dim, int) and own.shape else 1
    return own.numel // max(1, size) * index.numel


def _elements_put(node: OpNode) -> int:
    own, indices = node.inputs[0], _indices(node)
    if _masks(tuple(indices.values())):
        # How many a mask picks only its values say; one value may stand for any number.
        values = node.tensor("values")
        return values.numel if values.numel > 1 else own.numel
    return broadcast_numel(*(tensor.shape for tensor in indices.values())) * math.prod(
        _unindexed(own.shape, indices)
    )


def mask_to_fill(node: OpNode) -> TensorMeta | None:
    """The mask, as it is laid over the first input, of an ``index_put`` that is ``masked_fill_``: it sets one number from
    the host (``canDispatchToMaskedFill`` in TensorAdvancedIndexing.cpp)."""
    indices, values = _indices(node), node.arg("values")
    if len(indices) != 1 or node.arg("accumulate", False) or not isinstance(values, TensorMeta):
        return None
    ((place, mask),) = indices.items()
    if not _masks(mask) or on_device(values) or values.numel != 1:
        return None
    behind = (1,) * (len(node.inputs[0].shape) - place - len(mask.shape))
    return replace(mask, shape=mask.shape + behind, stride=mask.stride + behind)


def _indices(node: OpNode) -> dict[int, TensorMeta]:
    """The index tensors by the place at which they stand."""
    given = node.arg("indices")
    listed: Sequence[object] = given if isinstance(given, tuple) else ()
    return {place: tensor for place, tensor in enumerate(listed) if isinstance(tensor, TensorMeta)}


@rule(
    "aten.index_put",
    "aten.index_put_",
    "aten._index_put_impl_",
    "aten._unsafe_index_put",
)
def writes_indexed(node: OpNode, target: Target) -> Work:
    """One kernel that writes the indexed places; adding sorts the indices first, so that equal ones meet
    (Indexing.cu, TensorAdvancedIndexing.cpp)."""
    own = node.inputs[0]
    masks = _masks(node.arg("indices"))
    accumulates = bool(node.arg("accumulate", False))
    kernels, memcpys = _clone(node)
    memsets = 0
    mask = mask_to_fill(node)
    if mask is not None:
        kernels += kernels_over(own.shape, own, mask)
        masks = []
    elif accumulates:
        sorted_first = _sorted_index_put(node, target)
        kernels += sorted_first.kernels
        memsets = sorted_first.memsets
    else:
        kernels += 1
    elements = elements_filled(node)
    filled = distinct_bytes(own, elements * own.itemsize)
    reads, writes, passes = _scattered(node, filled, reads_own=accumulates or mask is not None)
    return streaming(
        node,
        kernels=kernels + sum(nonzero_kernels(mask) for mask in masks),
        memcpys=memcpys + len(masks),
        memsets=memsets,
        reads=reads,
        writes=writes,
        passes=passes,
        flops=elements if accumulates else 0,
        kind="gather",
        host_wait=bool(masks),
    )


def _sorted_index_put(node: OpNode, target: Target) -> radix.Launches:
    """Launches of ``index_put_with_sort_kernel``.

    Each index tensor is checked against its dimension (largest and smallest: a reduction, a comparison, an
    assertion each), wrapped and scaled; all are added up and divided by the slice's size; numbered, sorted on as many
    bits as the result has places; and one kernel adds the values in that order.
    """
    own, values = node.inputs[0], node.tensor("values")
    found = _indices(node)
    indices, places = list(found.values()), list(found)
    if not indices or not values.numel:
        return radix.Launches(0)
    count = broadcast_numel(*(tensor.shape for tensor in indices))
    kernels = memsets = 0
    if "unsafe" not in node.op:
        for tensor in indices:
            bounds = reduction(contiguous(tensor, dtype="int64"), (), target)
            kernels += 2 * (bounds.kernels + 2)
            memsets += 2 * bounds.memsets
    kernels += 2 * len(indices) + (len(indices) - 1) + 1
    adjacent = places == list(range(places[0], places[-1] + 1))
    inner = own.shape[places[-1] + 1 :] if adjacent else _unindexed(own.shape, places)
    slice_size = math.prod(inner)
    sort = radix.radix_sort(
        count,
        key_bytes=8,
        value_bytes=8,
        bits=radix.bits_of((own.numel - 1) // max(1, slice_size)),
    )
    # The values are expanded to one slice an index; indices that are not adjacent move to the front.
    outer = math.prod(own.shape[: places[0]]) if adjacent else 1
    expanded = values.numel != count * slice_size * outer or not values.is_contiguous
    moved = 0 if adjacent else 2
    return radix.Launches(kernels + 1 + sort.kernels + 1 + expanded + moved, memsets + sort.memsets)


def _unindexed(shape: Sequence[int], places: Iterable[int]) -> list[int]:
    taken = set(places)
    return [size for dim, size in enumerate(shape) if dim not in taken]


#: Indices up to this number are added by one kernel without sorting (Embedding.cu).
EMBEDDING_UNSORTED = 3072

#: Kernels after the sort: zero the table's gradient; unique by key (2); partial sums of each row's run: their
#: number, scan (2), total and offsets; the partial sums; the rows (EmbeddingBackwardKernel.cu).
EMBEDDING_SUM_KERNELS = 10


def _rows_added_in_order(indices: TensorMeta, *, by_frequency: bool) -> radix.Launches:
    """Number the indices, sort them on all bits, scale by how often each occurs if asked to (two scans by key), add
    up each one's rows."""
    sort = radix.radix_sort(indices.numel, key_bytes=indices.itemsize, value_bytes=indices.itemsize)
    frequencies = 4 if by_frequency else 0
    return radix.Launches(1 + sort.kernels + frequencies + EMBEDDING_SUM_KERNELS, sort.memsets)


@rule("aten.embedding_dense_backward")
def adds_rows(node: OpNode, _target: Target) -> Work:
    """Zero the table's gradient, then add each gradient row; long index lists are sorted first (Embedding.cu)."""
    gradient, indices = node.inputs[:2]
    by_frequency = bool(node.arg("scale_grad_by_freq"))
    launches = (
        radix.Launches(2)
        if indices.numel <= EMBEDDING_UNSORTED and not by_frequency
        else _rows_added_in_order(indices, by_frequency=by_frequency)
    )
    return streaming(
        node,
        kernels=launches.kernels + contiguous_kernels(gradient, indices),
        memsets=launches.memsets,
        flops=gradient.numel,
        kind="gather",
        scratch=contiguous_copies(gradient, indices),
        passes=_zeroed_then_added(node, gradient, indices),
    )


def _zeroed_then_added(node: OpNode, gradient: TensorMeta, indices: TensorMeta) -> list[Pass]:
    """A table's gradient is cleared; then the rows that occur are added to it. Operands that are not contiguous are
    copied first."""
    operands: list[Access | int] = [Access(tensor, tensor.nbytes) for tensor in (gradient, indices)]
    copied = [place for place, tensor in enumerate((gradient, indices)) if not tensor.is_contiguous]
    passes = []
    for number, place in enumerate(copied):
        passes.append(Pass((operands[place],), (number,)))
        operands[place] = number
    table = node.outputs[0]
    rows = Access(table, distinct_bytes(table, indices.numel * table.shape[-1] * table.itemsize))
    return [*passes, Pass((), (Access(table, table.nbytes),)), Pass((*operands, rows), (rows,))]


@rule("aten._embedding_bag", "aten._embedding_bag_forward_only")
def sums_bags_of_rows(node: OpNode, _target: Target) -> Work:
    """Reads a row an index, adds it to its bag (EmbeddingBag.cu)."""
    table, indices = node.inputs[:2]
    row = table.shape[-1] * table.itemsize
    reads = [
        replace(access, nbytes=distinct_bytes(table, indices.numel * row))
        if access.tensor.id == table.id
        else access
        for access in inputs_read(node)
    ]
    return streaming(node, reads=reads, flops=indices.numel * table.shape[-1], kind="gather")


#: ``EmbeddingBagMode::MAX``.
_MAX_MODE = 2


@rule("aten._embedding_bag_dense_backward", "aten._embedding_bag_backward")
def adds_rows_of_bags(node: OpNode, _target: Target) -> Work:
    """As for an embedding, always sorted; of maxima, zero and scatter (EmbeddingBag.cu). Autograd calls
    ``_embedding_bag_backward``, which calls the dense one, or makes a sparse gradient in a way that is not known."""
    if node.arg("sparse"):
        return schema_default(node)
    gradient, indices = node.inputs[:2]
    by_frequency = bool(node.arg("scale_grad_by_freq"))
    launches = (
        radix.Launches(2)
        if node.arg("mode") == _MAX_MODE
        else _rows_added_in_order(indices, by_frequency=by_frequency)
    )
    return streaming(
        node,
        kernels=launches.kernels + contiguous_kernels(gradient),
        memsets=launches.memsets,
        flops=indices.numel * gradient.shape[-1],
        kind="gather",
    )
