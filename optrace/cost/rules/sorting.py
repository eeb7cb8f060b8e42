"""Sorts, scans and histograms: several launches whose number depends on the size."""

from __future__ import annotations

import math
from dataclasses import replace

from optrace.cost.profiles import Target
from optrace.cost.rules.layouts import (
    contiguous,
    contiguous_copies,
    contiguous_kernels,
    copy_launches,
    is_dense,
)
from optrace.cost.rules.radix import (
    Launches,
    bits_of,
    radix_passes,
    radix_sort,
    scan,
    segmented_radix_sort,
)
from optrace.cost.rules.reduce_config import reduction
from optrace.cost.rules.reductions import sums
from optrace.cost.rules.table import inputs_read, rule, streaming, whole
from optrace.cost.rules.tensor_iterator import kernels_over
from optrace.cost.work import FREE, Operand, Pass, Work
from optrace.graph import OpNode, TensorMeta

#: Rows up to this length are sorted in place by one block each (``should_use_small_sort`` in Sort.h).
SMALL_SORT = 4096
#: Rows from this length on, and any single one, are sorted one after the other (SortStable.cu).
LARGE_SEGMENT = 1_000_000
#: From this many rows on CUB sorts them as segments (SortStable.cu).
MANY_SEGMENTS = 128


def _dim(node: OpNode, rank: int) -> int:
    dim = node.arg("dim", -1)
    return dim % rank if isinstance(dim, int) and rank else 0


@rule("aten.cumsum", "aten.cumprod", "aten.logcumsumexp", "aten.cummax", "aten.cummin")
@rule("aten._cummax_helper", "aten._cummin_helper", "aten.cumsum_", "aten.cumprod_")
def scans(node: OpNode, _target: Target) -> Work:
    """Cast to the result's dtype, make contiguous, then one kernel along the dimension; a scan over everything is
    CUB's (``scan_dim`` in ScanUtils.cuh). One FLOP an element."""
    source, result = node.inputs[0], (*node.outputs, node.inputs[0])[0]
    dim = _dim(node, len(source.shape))
    cast = replace(source, dtype=result.dtype)
    casts = 0 if cast.dtype == source.dtype else kernels_over(source.shape, source, cast)
    with_indices = "cummax" in node.op or "cummin" in node.op
    everything = bool(source.shape) and source.numel == source.shape[dim] and not with_indices
    return streaming(
        node,
        kernels=casts + contiguous_kernels(cast) + (scan(source.numel) if everything else 1),
        flops=source.numel,
        kind="reduction",
        scratch=((source.numel * cast.itemsize,) if casts else ()) + contiguous_copies(cast),
    )


def sort_launches(source: TensorMeta, dim: int) -> tuple[int, int, int]:
    """(kernels, memcpys, memsets) of sorting values with their positions along ``dim`` (Sort.cpp, SortStable.cu)."""
    n, row = source.numel, source.shape[dim]
    values = source if is_dense(source) else contiguous(source)
    kernels, memcpys = copy_launches(source, values)
    if row <= SMALL_SORT:
        # Positions along the dimension, spread over all rows; the values once more; one kernel, none to sort one.
        spread = (0, 1) if n == row else (1, 0)
        again = copy_launches(source, values)
        return (
            kernels + 1 + spread[0] + again[0] + (row > 1),
            memcpys + spread[1] + again[1],
            0,
        )
    along = is_dense(source) and source.stride[dim] == 1
    kernels += 0 if along else 1
    back = 0 if values.stride[dim] == 1 else 2
    sort = _rows_sorted(n // row, row, source.itemsize)
    return kernels + sort.kernels + back, memcpys, sort.memsets


def _rows_sorted(rows: int, row: int, itemsize: int) -> Launches:
    """Long rows side by side in memory: one kernel for positions, then by number and length of rows."""
    if rows == 1 or row >= LARGE_SEGMENT:
        one = radix_sort(row, key_bytes=itemsize, value_bytes=8)
        return Launches(1 + rows * one.kernels, rows * one.memsets)
    if rows >= MANY_SEGMENTS:
        return Launches(1 + segmented_radix_sort(key_bytes=itemsize).kernels)
    # All rows at once by value, then stably by row; positions and values put in place.
    by_value = radix_sort(rows * row, key_bytes=itemsize, value_bytes=8)
    by_row = radix_sort(rows * row, key_bytes=8, bits=max(1, math.ceil(math.log2(rows))))
    return Launches(2 + by_value.kernels + by_row.kernels, by_value.memsets + by_row.memsets)


@rule("aten.sort", "aten.argsort")
def sorts(node: OpNode, _target: Target) -> Work:
    """Values and their positions. Comparisons are not counted as arithmetic."""
    source = node.inputs[0]
    if not source.shape:
        return streaming(node, kernels=1, memcpys=1, kind="gather")
    dim = _dim(node, len(source.shape))
    kernels, memcpys, memsets = sort_launches(source, dim)
    scratch, passes = _sort_passes(node, source, dim)
    return streaming(
        node,
        kernels=kernels,
        memcpys=memcpys,
        memsets=memsets,
        kind="gather",
        scratch=scratch,
        passes=passes,
    )


#: Bytes of a position.
_POSITION = 8


def _sort_passes(node: OpNode, source: TensorMeta, dim: int) -> tuple[tuple[int, ...], tuple[Pass, ...]]:
    """Temporaries of a sort, and what its kernels move: short rows are sorted where they are; long ones go back and
    forth, keys and positions, between the results and a buffer, once a pass over the digits."""
    n, row = source.numel, source.shape[dim]
    keys = whole(source)
    if len(node.outputs) == 2:
        results: tuple[Operand, ...] = tuple(whole(result) for result in node.outputs)
        scratch: tuple[int, ...] = ()
    else:  # argsort drops the values
        results = (0, whole(node.outputs[0]))
        scratch = (source.nbytes,)
    values, positions = results
    copied = Pass((keys,), (values,), is_copy=copy_launches(source, contiguous(source))[1] > 0)
    if row <= SMALL_SORT:
        return scratch, (copied, Pass((), (positions,)), copied, Pass(results, results))
    counted, buffer = len(scratch), (len(scratch) + 1, len(scratch) + 2)
    scratch = (*scratch, _POSITION * n, source.nbytes, _POSITION * n)
    rows = n // row
    digits = radix_passes(8 * source.itemsize, segmented=rows >= MANY_SEGMENTS and row < LARGE_SEGMENT)
    sides = (buffer, results) if digits % 2 == 0 else (results, buffer)
    there, back = Pass(sides[1], sides[0]), Pass(sides[0], sides[1])
    first = Pass((values, counted), sides[0])
    by_row: tuple[Pass, ...] = ()
    if 1 < rows < MANY_SEGMENTS and row < LARGE_SEGMENT:
        # Stably by row after that, and both put in place.
        by_row = (
            *(Pass((positions,), (positions,)),) * radix_passes(bits_of(rows - 1)),
            Pass(buffer, results),
        )
    swept = tuple(there if number % 2 else back for number in range(digits - 1))
    return scratch, (copied, Pass((), (counted,)), first, *swept, *by_row)


#: Where top-k splits a row over blocks: at most so many rows, at least so long (``should_use_multiblock``
#: in TensorTopK.cu).
_MULTI_BLOCK = ((20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800))
_MULTI_BLOCK_REST = 400
_RADIX_BITS = 8
#: Threads of its blocks and the least and most elements a thread, and the blocks that an SM runs at once
#: (``get_items_per_thread``: 40 registers a thread of 65,536).
_TOPK_THREADS, _TOPK_LEAST_ITEMS, _TOPK_MOST_ITEMS, _TOPK_BLOCKS_A_SM = 256, 4, 64, 6


def topk_launches(rows: int, row: int, k: int, itemsize: int, *, in_order: bool) -> Launches:
    """Select, then sort what was selected if it is wanted in order (TensorTopK.cpp, TensorTopK.cu).

    Rows split over blocks: a fill, two memsets, three kernels a digit, per-block counts, two scans by key,
    a gather.
    """
    shortest = next((length for most, length in _MULTI_BLOCK if rows <= most), _MULTI_BLOCK_REST)
    digits = 8 * itemsize // _RADIX_BITS
    select = Launches(1 + 3 * digits + 1 + 4 + 1, 2) if row >= shortest else Launches(1)
    return Launches(select.kernels + (in_order and k > 1), select.memsets)


def _digit_counts(rows: int, row: int, target: Target) -> int:
    """Bytes in which the blocks of all rows count their digits: 2 for each of 256."""
    in_flight = target.sm_count * _TOPK_BLOCKS_A_SM * _TOPK_THREADS
    items = min(_TOPK_MOST_ITEMS, max(_TOPK_LEAST_ITEMS, -(-rows * row // in_flight)))
    return rows * -(-row // (items * _TOPK_THREADS)) * 2 * (1 << _RADIX_BITS)


@rule("aten.topk")
def selects_largest(node: OpNode, target: Target) -> Work:
    """One or more radix selections, then a small sort. More than 4,096 a row are sorted, gathered and copied back."""
    source, values = node.inputs[0], node.outputs[0]
    if not source.shape or not values.numel:
        return streaming(node, kernels=1, kind="gather")
    dim = _dim(node, len(source.shape))
    row, k = source.shape[dim], values.shape[dim]
    in_order = bool(node.arg("sorted", True)) and values.numel > 1
    small = k <= SMALL_SORT
    launches = topk_launches(source.numel // row, row, k, source.itemsize, in_order=in_order and small)
    kernels, memcpys, memsets = (0, 0, 0) if small or not in_order else sort_launches(values, dim)
    if kernels:
        kernels, memcpys = kernels + 1, memcpys + 2
    split = launches.memsets > 0
    found = Pass((whole(source),), tuple(whole(result) for result in node.outputs))
    # Counts of each digit, then what was found; one block keeps its row in the L2 meanwhile.
    digit = (Pass((whole(source),), (0,)), Pass((0,)))
    return streaming(
        node,
        kernels=launches.kernels + kernels,
        memcpys=memcpys,
        memsets=launches.memsets + memsets,
        kind="gather",
        scratch=(_digit_counts(source.numel // row, row, target),) if split else (),
        passes=(*digit * (8 * source.itemsize // _RADIX_BITS), found) if split else (found,),
    )


@rule("aten.histc")
def counts_into_bins(node: OpNode, target: Target) -> Work:
    """Zero the bins, count; with equal bounds the host reads the smallest and largest value first
    (SummaryOps.cu)."""
    source = node.inputs[0]
    bounds_unknown = node.arg("min", 0) == node.arg("max", 0)
    found = reduction(source, (), target) if bounds_unknown else None
    return streaming(
        node,
        kernels=2 + (found.kernels if found else 0),
        memsets=found.memsets if found else 0,
        memcpys=2 if found else 0,
        flops=source.numel,
        kind="gather",
        host_wait=bounds_unknown,
    )


@rule("aten.bincount")
def counts_each_value(node: OpNode, target: Target) -> Work:
    """The host reads the smallest value (not of unsigned ones) and the largest, which sizes the result; zero it,
    count (SummaryOps.cu)."""
    source = node.inputs[0]
    found = reduction(source, (), target)
    times = 1 if source.dtype == "uint8" else 2
    return streaming(
        node,
        kernels=2 + times * found.kernels,
        memsets=times * found.memsets,
        memcpys=times,
        flops=source.numel,
        kind="gather",
        host_wait=True,
    )


@rule("aten.multinomial")
def draws(node: OpNode, target: Target) -> Work:
    """The host checks the probabilities; then the largest of probabilities over exponential numbers is drawn
    (Distributions.cpp). Several draws with replacement: launches not known (MultinomialKernel.cu)."""
    source = node.inputs[0]
    work = streaming(node, flops=6 * source.numel, kind="gather", host_wait=True)
    draws_each = node.arg("num_samples", 1)
    if not isinstance(draws_each, int) or (draws_each != 1 and node.arg("replacement", False)):
        return replace(work, kernels=None, source="unknown")
    largest = reduction(source, (), target)
    rows, last = (source.numel // source.shape[-1], (-1,)) if source.shape else (1, ())
    total = sums(source, last, target)
    # Both bounds, compared and joined; row sums, compared, and in two dimensions cast and counted.
    kernels = 2 * largest.kernels + 3 + total.kernels + 1
    memsets = 2 * largest.memsets + total.memsets
    if len(source.shape) == 2:
        counted = sums(replace(source, shape=(rows,), stride=(1,), dtype="int64"), (), target)
        kernels, memsets = kernels + 1 + counted.kernels, memsets + counted.memsets
    if draws_each == 1:
        chosen = reduction(source, last, target, output_itemsize=8)
    else:
        row = source.shape[-1]
        top = topk_launches(rows, row, draws_each, source.itemsize, in_order=True)
        return replace(work, kernels=kernels + 2 + top.kernels, memcpys=2, memsets=memsets + top.memsets)
    return replace(work, kernels=kernels + 2 + chosen.kernels, memcpys=2, memsets=memsets + chosen.memsets)


@rule("aten.searchsorted", "aten.bucketize")
def searches(node: OpNode, _target: Target) -> Work:
    """A binary search an element, over contiguous tensors (Bucketization.cu)."""
    return streaming(
        node,
        kernels=1 + contiguous_kernels(*(access.tensor for access in inputs_read(node))),
        flops=node.outputs[0].numel,
        kind="gather",
    )


@rule("aten.isin")
def tests_membership(node: OpNode, target: Target) -> Work:
    """Few test elements are compared each with all: a fill, comparisons, any, a copy into the result. Many are sorted
    together with the elements: launches not known (TensorCompare.cpp, cuda/TensorCompare.cpp)."""
    elements, tests = (node.arg(name) for name in ("elements", "test_elements"))
    if not isinstance(elements, TensorMeta) or not isinstance(tests, TensorMeta):
        return streaming(node, flops=node.outputs[0].numel, kind="gather")
    if not elements.numel:
        return FREE
    if tests.numel >= int(10 * elements.numel**0.145):
        return replace(streaming(node, flops=None, kind="gather"), kernels=None, source="unknown")
    table = contiguous(replace(elements, shape=(elements.numel, tests.numel), stride=(1, 1)), dtype="bool")
    found = reduction(table, (1,), target)
    return streaming(
        node,
        kernels=1 + 1 + found.kernels,
        memsets=found.memsets,
        memcpys=1,
        flops=2 * table.numel,
        kind="gather",
        scratch=(table.numel, elements.numel),
    )
