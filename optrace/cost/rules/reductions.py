"""Reductions to fewer elements: about one FLOP an input element. ``reduce_config`` holds their launch logic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from optrace.cost.profiles import Target
from optrace.cost.rules.reduce_config import Reduction, reduction
from optrace.cost.rules.table import elements_read, pointwise_kernels, rule, streaming, whole
from optrace.cost.rules.tensor_iterator import broadcast_numel, kernels_over
from optrace.cost.work import FREE, Work
from optrace.graph import OpNode, TensorMeta

#: Dtypes that sum, mean and norm read directly when their result is float32; others are cast by a kernel before.
_WIDENED_ON_THE_WAY = ("float16", "bfloat16")


#: Bytes of a running value: a value with its index, and Welford's mean, square sum and counts.
PAIR = 16
WELFORD = 16


def reduced_dims(node: OpNode) -> tuple[int, ...]:
    """The dimensions that the call names, as a tuple; empty is all of them."""
    dim = node.arg("dim")
    if isinstance(dim, int) and not isinstance(dim, bool):
        return (dim,)
    return tuple(d for d in dim if isinstance(d, int)) if isinstance(dim, tuple) else ()


def sums(source: TensorMeta, dims: Sequence[int], target: Target) -> Reduction:
    """A sum or mean: 16-bit inputs are loaded eight at a time (ReduceSumProdKernel.cu, ReduceMomentKernel.cu)."""
    return reduction(source, dims, target, input_vector=8 if source.itemsize == 2 else 4)


@rule("aten.sum", "aten.mean", "aten.nansum", "aten.prod", "aten.linalg_vector_norm", "aten.norm")
def reduces_in_the_result_dtype(node: OpNode, target: Target) -> Work:
    """One pass in the result's dtype. An input of another dtype is cast by a kernel first, except half to float
    (``make_reduction_from_out_ty`` in ReduceOpsUtils.h)."""
    source, result = node.inputs[0], node.outputs[0]
    direct = source.dtype == result.dtype or (
        source.dtype in _WIDENED_ON_THE_WAY and result.dtype == "float32"
    )
    summed = source if direct else replace(source, dtype=result.dtype)
    name = node.facts.packet
    each = 2 if name in ("aten.linalg_vector_norm", "aten.norm") else 1
    vector = 8 if summed.itemsize == 2 and name in ("aten.sum", "aten.mean") else 4
    launches = reduction(
        summed, reduced_dims(node), target, input_vector=vector, output_itemsize=result.itemsize
    )
    return streaming(
        node,
        kernels=launches.kernels + (0 if direct else kernels_over(source.shape, source, summed)),
        memsets=launches.memsets,
        flops=each * source.numel,
        kind="reduction",
        scratch=() if direct else (source.numel * summed.itemsize,),
        reserved=launches.staged * max(4, summed.itemsize),
    )


@rule("aten.amax", "aten.amin", "aten.aminmax", "aten.argmax", "aten.argmin", "aten.any", "aten.all")
@rule("aten.max", "aten.min")
def reduces(node: OpNode, target: Target) -> Work:
    """One pass that compares in the input's dtype (ReduceMaxValuesKernel.cu, ReduceArgMaxKernel.cu,
    ReduceLogicKernel.cu)."""
    source = node.inputs[0]
    if isinstance(node.arg("other"), TensorMeta):
        return streaming(
            node, kernels=pointwise_kernels(node), flops=node.outputs[0].numel, kind="elementwise"
        )
    launches = reduction(
        source, reduced_dims(node), target, output_itemsize=max(out.itemsize for out in node.outputs)
    )
    return streaming(
        node,
        kernels=launches.kernels,
        memsets=launches.memsets,
        flops=source.numel,
        kind="reduction",
        reserved=launches.staged * (PAIR if "arg" in node.op or len(node.outputs) > 1 else source.itemsize),
    )


@rule("aten.std", "aten.var", "aten.var_mean", "aten.std_mean")
def reduces_moments(node: OpNode, target: Target) -> Work:
    """Welford's update in one pass, loads two elements at a time (ReduceMomentKernel.cu). 4 FLOPs an element."""
    source = node.inputs[0]
    launches = reduction(source, reduced_dims(node), target, input_vector=2)
    return streaming(
        node,
        kernels=launches.kernels,
        memsets=launches.memsets,
        flops=4 * source.numel,
        kind="reduction",
        reserved=launches.staged * WELFORD,
    )


@rule("aten.logsumexp")
def subtracts_the_maximum_first(node: OpNode, target: Target) -> Work:
    """amax; its infinities set to zero (abs, equal, masked_fill); subtract, exp, sum, log, add it back
    (ReduceOps.cpp)."""
    source, result = node.inputs[0], node.outputs[0]
    dims = reduced_dims(node)
    maxima, total = reduction(source, dims, target), sums(source, dims, target)
    over_input, over_result = (kernels_over(tensor.shape, tensor) for tensor in (source, result))
    return streaming(
        node,
        kernels=maxima.kernels + total.kernels + 2 * over_input + 5 * over_result,
        memsets=maxima.memsets + total.memsets,
        flops=4 * source.numel + 4 * result.numel,
        kind="reduction",
        rereads=(whole(source),),
        scratch=(source.nbytes, source.nbytes),
    )


@rule("aten.dist")
def norm_of_a_difference(node: OpNode, target: Target) -> Work:
    """Subtract, then the norm (Distance.cpp). Equal shapes are meant; a broadcast one is as large as its result."""
    widest = max(node.inputs, key=lambda tensor: tensor.numel)
    launches = reduction(widest, (), target)
    return streaming(
        node,
        kernels=launches.kernels + kernels_over(widest.shape, *node.inputs),
        memsets=launches.memsets,
        flops=3 * widest.numel,
        kind="reduction",
        scratch=(widest.nbytes,),
    )


@rule("aten.trace")
def sums_the_diagonal(node: OpNode, target: Target) -> Work:
    """The diagonal's view, summed (TriangularOps.cu)."""
    source = node.inputs[0]
    diagonal = replace(source, shape=(min(source.shape),), stride=(sum(source.stride),))
    launches = sums(diagonal, (), target)
    return streaming(
        node,
        kernels=launches.kernels,
        memsets=launches.memsets,
        reads=[whole(diagonal)],
        flops=diagonal.numel,
        kind="reduction",
    )


@rule("aten.count_nonzero")
def counts_nonzero(node: OpNode, target: Target) -> Work:
    """Not equal to zero, cast to int64, sum (TensorAdvancedIndexing.cpp)."""
    source = node.inputs[0]
    launches = sums(replace(source, dtype="int64"), reduced_dims(node), target)
    return streaming(
        node,
        kernels=launches.kernels + 2 * kernels_over(source.shape, source),
        memsets=launches.memsets,
        flops=2 * source.numel,
        kind="reduction",
        scratch=(source.numel, 8 * source.numel),
    )


@rule("aten.equal")
def compares_all(node: OpNode, target: Target) -> Work:
    """Compare, reduce, bring one value to the host, which waits; sizes that differ, and empty tensors, the host tells
    (``cuda_equal`` in Equal.cpp)."""
    source, other = node.inputs[:2]
    if source.shape != other.shape or not source.numel:
        return FREE
    launches = reduction(replace(source, dtype="bool"), (), target)
    return streaming(
        node,
        kernels=launches.kernels + kernels_over(source.shape, source, other),
        memsets=launches.memsets,
        memcpys=1,
        flops=2 * source.numel,
        kind="reduction",
        writes=(),
        host_wait=True,
        scratch=(source.numel,),
    )


@rule("aten.allclose")
def compares_all_nearly(node: OpNode, target: Target) -> Work:
    """``isclose`` in its parts, all, one value to the host, which waits (TensorCompare.cpp): equal; ``rtol * other``,
    abs, ``+ atol``; difference, abs; finite (abs, not infinite, not NaN, both) and small enough; or equal. With
    ``equal_nan`` also both NaN; integers are cast; without tolerance equality is all."""
    source, other = node.inputs[:2]
    numel = broadcast_numel(source.shape, other.shape)
    whole_shape = replace(source, shape=(numel,), stride=(1,))
    is_integer = source.dtype in _INTEGERS
    if node.arg("rtol", 1e-5) == node.arg("atol", 1e-8) == 0:
        steps = 1
    else:
        steps = 13 + is_integer + (source.dtype == "bool")
    if node.arg("equal_nan", False) and not is_integer:
        steps += 4
    launches = reduction(replace(whole_shape, dtype="bool"), (), target)
    return streaming(
        node,
        kernels=steps * kernels_over(whole_shape.shape, whole_shape) + launches.kernels,
        memsets=launches.memsets,
        memcpys=1,
        flops=(steps + 1) * numel,
        kind="reduction",
        writes=(),
        host_wait=True,
        scratch=(numel * source.itemsize,) * (6 if steps > 1 else 0) + (numel,),
    )


_INTEGERS = frozenset({"bool", "uint8", "int8", "int16", "int32", "int64"})


@rule("aten._linalg_check_errors")
def looks_for_errors(node: OpNode, target: Target) -> Work:
    """Whether any matrix failed: the host waits for one value (BatchLinearAlgebra.cpp). Each ``torch.linalg.inv``,
    ``solve`` and ``cholesky`` does this."""
    source = node.inputs[0]
    launches = reduction(source, (), target, output_itemsize=1)
    return streaming(
        node,
        kernels=launches.kernels,
        memsets=launches.memsets,
        memcpys=1,
        flops=source.numel,
        kind="reduction",
        writes=(),
        host_wait=True,
    )


@rule("aten._assert_async")
def asserts_on_the_device(node: OpNode, _target: Target) -> Work:
    """One thread looks at one value; the host goes on (TensorCompare.cu)."""
    return Work(kernels=1, reads=(whole(node.inputs[0]),), kind="reduction")


@rule("aten.median", "aten.nanmedian", "aten.kthvalue")
def selects_by_rank(node: OpNode, _target: Target) -> Work:
    """Radix selection in one kernel along a dimension, which passes over a row once for each two bits
    (Sorting.cpp, Sorting.cu). Without a dimension the input is sorted: launches not known."""
    source = node.inputs[0]
    work = streaming(node, kind="reduction", flops=elements_read(node))
    if "dim" not in node.facts.arg_names:
        return replace(work, kernels=None, source="unknown")
    return replace(work, rereads=tuple(whole(source) for _ in range(4 * source.itemsize - 1)))
