"""Reductions by TensorIterator (Reduce.cuh): blocks, and the values that a thread adds up one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from optrace.cost.device.kernel import MEMSET, Kernel, Launch, launches
from optrace.cost.device.streams import over, pointwise
from optrace.cost.profiles import Target
from optrace.cost.rules.layouts import contiguous
from optrace.cost.rules.reduce_config import (
    MIN_VECTORIZED,
    _output_vector,
    reduce_config,
    reduction_iteration,
)
from optrace.cost.rules.reductions import reduced_dims
from optrace.cost.work import Work
from optrace.graph import OpNode, TensorMeta


def reducing(
    source: TensorMeta,
    dims: Sequence[int],
    target: Target,
    *,
    input_vector: int = 4,
    output_itemsize: int | None = None,
    kind: str = "reduce",
) -> list[Launch]:
    """The launches of one reduction, with the memset of semaphores before each that needs them."""
    if not source.numel:
        return []
    found: list[Launch] = []
    whole = reduction_iteration(source, dims, output_itemsize or source.itemsize)
    pieces = list(whole.pieces())
    for piece in pieces:
        config = reduce_config(piece, source, target, input_vector)
        output, steps = piece.strides
        reduced = sum(step == 0 for step in output)
        rank = len(piece.shape)
        along = rank == 0 or reduced == rank or steps[0] < steps[reduced]
        blocks = config.blocks * config.ctas_per_output
        threads = config.block_width * config.block_height
        values = piece.numel / max(1, blocks * threads)
        vector = 1
        if not along:
            vector = _output_vector(piece, source, reduced)
        elif rank and reduced == 1 and steps[0] == source.itemsize and piece.shape[0] >= MIN_VECTORIZED:
            vector = input_vector
        tail = 0.0
        if config.clears_semaphores:
            tail = config.ctas_per_output / (threads if along else config.block_height)
        if config.clears_semaphores:
            found.append(MEMSET)
        outputs = math.prod(n for n, s in zip(piece.shape, output, strict=True) if s)
        nbytes = source.nbytes / len(pieces) + outputs * (output_itemsize or source.itemsize)
        name = f"{kind}_{'rows' if along else 'columns'}"
        found.append(Kernel(name, nbytes, blocks * threads / 512, values / vector, tail))
    return found


@launches("aten.sum", "aten.mean", "aten.nansum", "aten.prod", "aten.linalg_vector_norm", "aten.norm")
def sums(node: OpNode, _work: Work, target: Target) -> Sequence[Launch]:
    source, result = node.inputs[0], node.outputs[0]
    direct = source.dtype == result.dtype or (
        source.dtype in ("float16", "bfloat16") and result.dtype == "float32"
    )
    summed = source if direct else replace(source, dtype=result.dtype)
    vector = 8 if summed.itemsize == 2 and node.facts.packet in ("aten.sum", "aten.mean") else 4
    cast = [] if direct else [over(source.shape, summed, source, casts=True)]
    return [
        *cast,
        *reducing(summed, reduced_dims(node), target, input_vector=vector, output_itemsize=result.itemsize),
    ]


@launches(
    "aten.amax", "aten.amin", "aten.aminmax", "aten.argmax", "aten.argmin", "aten.any", "aten.all", "aten.max", "aten.min"
)  # fmt: skip
def extremes(node: OpNode, work: Work, target: Target) -> Sequence[Launch]:
    if isinstance(node.arg("other"), TensorMeta):
        return [pointwise(node, work)]
    indexed = "arg" in node.op or len(node.outputs) > 1
    return reducing(
        node.inputs[0],
        reduced_dims(node),
        target,
        output_itemsize=max(out.itemsize for out in node.outputs),
        kind="arg_reduce" if indexed else "reduce",
    )


@launches("aten.std", "aten.var", "aten.var_mean", "aten.std_mean")
def moments(node: OpNode, _work: Work, target: Target) -> Sequence[Launch]:
    return reducing(node.inputs[0], reduced_dims(node), target, input_vector=2, kind="moments")


@launches("aten.logsumexp")
def log_of_sums(node: OpNode, _work: Work, target: Target) -> Sequence[Launch]:
    """amax; abs, equal, masked_fill over the result; subtract, exp over the input; sum; log, add."""
    source, result = node.inputs[0], node.outputs[0]
    dims = reduced_dims(node)
    reduced = {dim % max(1, len(source.shape)) for dim in dims} or set(range(len(source.shape)))
    keepdim = replace(source, shape=tuple(1 if dim in reduced else n for dim, n in enumerate(source.shape)))
    maxima = replace(contiguous(keepdim), dtype=result.dtype)
    full = contiguous(source, dtype=result.dtype)
    small = [over(maxima.shape, maxima, maxima)] * 3
    return [
        *reducing(source, dims, target),
        *small,
        over(source.shape, full, source, maxima),
        over(source.shape, full, full, heavy=True),
        *reducing(full, dims, target),
        *[over(maxima.shape, maxima, maxima)] * 2,
    ]
