"""Matrix products: how PyTorch hands them to cuBLAS (Blas.cpp), and their 2 x multiply-adds.

What cuBLAS then launches is modelled in ``gemm``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from optrace.cost.profiles import Target
from optrace.cost.rules.gemm import Gemm, GemmPlan, plan, reread_bytes
from optrace.cost.rules.reduce_config import reduction
from optrace.cost.rules.table import elements_written, inputs_read, outputs_written, rule, streaming
from optrace.cost.work import FREE, Access, Operand, Pass, Work
from optrace.graph import OpNode, TensorMeta

#: Rows must start at multiples of this many bytes for cuBLAS's wide loads.
_ALIGNMENT_BYTES = 16


@rule("aten.mm", "aten.bmm")
def multiplies(node: OpNode, target: Target) -> Work:
    return _product(node, target, node.tensor("self"), node.tensor("mat2"))


@rule("aten.addmm", "aten.addmm_", "aten.baddbmm", "aten.baddbmm_", "aten._addmm_activation")
def multiplies_and_adds(node: OpNode, target: Target) -> Work:
    """The addend goes into the epilogue of cuBLASLt as a bias vector, else it is copied into the output first
    and added by the product's ``beta`` (addmm_out_cuda_impl in Blas.cpp). One FLOP an output element."""
    batched = node.facts.packet.startswith("aten.baddbmm")
    left, right = ("batch1", "batch2") if batched else ("mat1", "mat2")
    addend = node.tensor("self")
    mat1, mat2 = node.tensor(left), node.tensor(right)
    fused = not batched and bias_is_fused(node, addend, mat2)
    kernels = memcpys = 0
    if not fused and node.arg("beta", 1) != 0 and not any(node.writes):
        copied_whole = addend.is_contiguous and addend.numel == sum(t.numel for t in node.outputs)
        kernels, memcpys = int(not copied_whole), int(copied_whole)
    if node.facts.packet == "aten._addmm_activation" and not fused:
        kernels += 1
    return _product(
        node,
        target,
        mat1,
        mat2,
        fused_bias=fused,
        extra_kernels=kernels,
        memcpys=memcpys,
        extra_flops=sum(t.numel for t in node.outputs),
    )


@rule("aten.addbmm", "aten.addbmm_")
def sums_products(node: OpNode, target: Target) -> Work:
    """The addend is copied into the output, and a product a batch is added to it (addbmm_impl_ in LinearAlgebra.cpp)."""
    left, right = node.tensor("batch1"), node.tensor("batch2")
    batches = left.shape[0]
    made = plan(gemm_of(first_matrix(left), first_matrix(right)), target)
    copied = node.arg("beta", 1) != 0 and not any(node.writes)
    whole = node.tensor("self").is_contiguous and node.tensor("self").numel == node.outputs[0].numel
    flops = 2 * left.numel * right.shape[-1]
    return streaming(
        node,
        kernels=batches * made.kernels + (copied and not whole),
        memcpys=int(copied and whole),
        memsets=batches * made.memsets,
        flops=flops + node.outputs[0].numel,
        matmul_flops=flops,
        kind="matmul",
        math_dtype=target.product_dtype(left.dtype),
    )


def first_matrix(batched: TensorMeta) -> TensorMeta:
    """The first matrix of a batch."""
    return replace(batched, shape=batched.shape[1:], stride=batched.stride[1:])


@rule("aten._int_mm")
def multiplies_low_precision(node: OpNode, target: Target) -> Work:
    """int8 operands, int32 result (Blas.cpp)."""
    return _product(node, target, node.tensor("self"), node.tensor("mat2"))


@rule("aten._scaled_mm")
def multiplies_scaled(node: OpNode, target: Target) -> Work:
    """fp8 operands; the scales, and a bias, are applied in the epilogue (ScaledBlas.cpp)."""
    return _product(
        node,
        target,
        node.tensor("self"),
        node.tensor("mat2"),
        fused_bias=node.arg("bias") is not None,
        extra_flops=node.outputs[0].numel if node.arg("bias") is not None else 0,
    )


@rule("aten.mv", "aten.addmv", "aten.addmv_")
def matrix_vector(node: OpNode, _target: Target) -> Work:
    """``gemv``; the addend is copied into the result first (addmv_out_cuda in Blas.cpp)."""
    with_addend = node.facts.packet != "aten.mv"
    matrix = node.tensor("mat" if with_addend else "self")
    flops = 2 * matrix.numel
    return streaming(
        node,
        memcpys=int(with_addend and node.arg("beta", 1) != 0 and not any(node.writes)),
        flops=flops + (sum(t.numel for t in node.outputs) if with_addend else 0),
        matmul_flops=flops,
        kind="matmul",
        math_dtype=matrix.dtype,
    )


@rule("aten.dot", "aten.vdot")
def inner_product(node: OpNode, _target: Target) -> Work:
    """``cublasDot``: partial sums, then their sum, two kernels."""
    flops = 2 * node.inputs[0].numel
    return streaming(
        node, kernels=2, flops=flops, matmul_flops=flops, kind="matmul", math_dtype=node.inputs[0].dtype
    )


@rule("aten._grouped_mm")
def grouped_products(node: OpNode, _target: Target) -> Work:
    """One kernel lays out the groups' pointers and sizes, one CUTLASS kernel multiplies (GroupMM.cu).

    Every row, or column, of the ragged side meets one group's matrix, 2 x rows x k x n; two ragged sides share ``k``.
    """
    left, right = node.tensor("self"), node.tensor("mat2")
    flops = grouped_flops(left, right)
    return streaming(node, kernels=2, flops=flops, matmul_flops=flops, kind="matmul", math_dtype=left.dtype)


def grouped_flops(left: TensorMeta, right: TensorMeta) -> int:
    """Of ragged rows ``[rows, k] @ [groups, k, n]``, ragged columns ``[groups, m, k] @ [k, columns]``, a ragged ``k``
    (both 2-d) or groups of one size (both 3-d)."""
    columns_are_ragged = len(left.shape) == 3 and len(right.shape) == 2
    groups = left.shape[0] if columns_are_ragged else 1
    return 2 * left.numel // max(1, groups) * right.shape[-1]


@rule("aten._cdist_forward")
def distances(node: OpNode, _target: Target) -> Work:
    """Subtract, power and add for each pair and coordinate (DistanceKernel.cu). No matmul by convention."""
    left, right = node.inputs[:2]
    return streaming(node, flops=3 * left.numel * right.shape[-2], kind="reduction")


@rule("aten._euclidean_dist")
def euclidean_distances(node: OpNode, target: Target) -> Work:
    """``|x|^2 + |y|^2 - 2 x y`` in one product, two columns wider (Distance.cpp): squares and sums of both sides,
    columns of ones, one side times -2, two concatenations, the product, a clamp and a root in place."""
    left, right = node.inputs[:2]
    rows, columns, width = left.shape[-2], right.shape[-2], left.shape[-1] + 2
    batch = math.prod(node.outputs[0].shape[:-2])
    made = plan(Gemm(rows, columns, width, left.dtype, batch=batch, right_transposed=True), target)
    product = 2 * batch * rows * columns * width
    sums = [reduction(side, (len(side.shape) - 1,), target) for side in (left, right)]
    return streaming(
        node,
        kernels=2 + sum(s.kernels for s in sums) + 2 + 1 + 2 + made.kernels + 2,
        memsets=made.memsets + sum(s.memsets for s in sums),
        flops=product + 2 * (left.numel + right.numel) + left.numel + 2 * node.outputs[0].numel,
        matmul_flops=product,
        kind="matmul",
        math_dtype=target.product_dtype(left.dtype),
        scratch=tuple(side.numel // side.shape[-1] * width * side.itemsize for side in (left, right)),
    )


@rule("aten.addr", "aten.addr_")
def outer_product(node: OpNode, _target: Target) -> Work:
    """A pointwise kernel: a multiply and an add an element (LinearAlgebra.cu). No matmul by convention."""
    return streaming(node, flops=2 * elements_written(node), kind="elementwise")


def gemm_of(left: TensorMeta, right: TensorMeta, *, fused_bias: bool = False) -> Gemm:
    """The product ``[..., m, k] @ [..., k, n]`` as cuBLAS sees it."""
    m, k = left.shape[-2:]
    n = right.shape[-1]
    steps = (*_row_starts(left), *_row_starts(right), n)
    return Gemm(
        m,
        n,
        k,
        left.dtype,
        batch=math.prod(left.shape[:-2]),
        left_transposed=_is_transposed(left),
        right_transposed=_is_transposed(right),
        aligned=all(step * left.itemsize % _ALIGNMENT_BYTES == 0 for step in steps),
        odd=any(step % 2 for step in steps),
        fused_bias=fused_bias,
    )


def _product(
    node: OpNode,
    target: Target,
    left: TensorMeta,
    right: TensorMeta,
    *,
    fused_bias: bool = False,
    extra_kernels: int = 0,
    memcpys: int = 0,
    extra_flops: int = 0,
) -> Work:
    """``[..., m, k] @ [..., k, n]``, with the copies that PyTorch makes of operands cuBLAS cannot walk."""
    if not outputs_written(node):
        return FREE
    gemm = gemm_of(left, right, fused_bias=fused_bias)
    if not gemm.k:
        return streaming(node, kind="elementwise")
    made = plan(gemm, target)
    flops = 2 * gemm.batch * gemm.m * gemm.n * gemm.k
    copied = [tensor for tensor in (left, right) if not is_walkable(tensor)]
    reads, writes = tuple(inputs_read(node)), tuple(outputs_written(node))
    partial_sums = (made.workspace_elements * 4,) if made.workspace_elements else ()
    return Work(
        kernels=made.kernels + extra_kernels + len(copied),
        memcpys=memcpys,
        memsets=made.memsets,
        reads=reads,
        writes=writes,
        flops=flops + extra_flops,
        matmul_flops=flops,
        kind="matmul",
        math_dtype=target.product_dtype(left.dtype),
        rereads=_rereads(gemm, made, left, right, target),
        scratch=(*(tensor.numel * tensor.itemsize for tensor in copied), *partial_sums),
        reserved=sum(tensor.numel * tensor.itemsize for tensor in copied),
        passes=tuple(_passes(reads, writes, copied, has_partial_sums=bool(partial_sums))),
    )


def _passes(
    reads: tuple[Access, ...], writes: tuple[Access, ...], copied: list[TensorMeta], *, has_partial_sums: bool
) -> Iterator[Pass]:
    """Operands that are copied first, the product, and the sum of the parts of k, which lie behind the copies."""
    sources: list[Operand] = list(reads)
    for number, tensor in enumerate(copied):
        place = next(place for place, access in enumerate(reads) if access.tensor.id == tensor.id)
        yield Pass((reads[place],), (number,))
        sources[place] = number
    if has_partial_sums:
        yield Pass(tuple(sources), (len(copied),), is_product=True)
        yield Pass((len(copied),), writes)
    else:
        yield Pass(tuple(sources), writes, is_product=True)


def _rereads(
    gemm: Gemm, made: GemmPlan, left: TensorMeta, right: TensorMeta, target: Target
) -> tuple[Access, ...]:
    amounts = reread_bytes(gemm, made, left.itemsize, target)
    return tuple(Access(t, nbytes) for t, nbytes in zip((left, right), amounts, strict=True) if nbytes)


def bias_is_fused(node: OpNode, addend: TensorMeta, right: TensorMeta) -> bool:
    """isInputCompliesAddmmCudaLt in Blas.cpp: a contiguous vector as long as the rows, ``beta`` 1, and no matrix
    with a single row or column on the right."""
    return (
        node.arg("beta", 1) == 1
        and len([size for size in addend.shape if size != 1]) <= 1
        and addend.shape[-1:] == right.shape[-1:]
        and addend.is_contiguous
        and min(right.shape) > 1
        and addend.dtype in ("float64", "float32", "float16", "bfloat16")
    )


def _is_transposed(matrix: TensorMeta) -> bool:
    return matrix.stride[-1] != 1 and matrix.stride[-2] == 1


def is_walkable(matrix: TensorMeta) -> bool:
    """One of the last two strides is 1 and the other steps over a whole row; else Blas.cpp clones the matrix
    (prepare_matrix_for_cublas)."""
    (rows, columns), (down, across) = matrix.shape[-2:], matrix.stride[-2:]
    row_major = (across == 1 or columns == 1) and (down >= max(1, columns) or rows == 1)
    column_major = (down == 1 or rows == 1) and (across >= max(1, rows) or columns == 1)
    return row_major or column_major


def _row_starts(matrix: TensorMeta) -> tuple[int, ...]:
    """Elements from one row to the next, and to the first."""
    steps = [
        stride for size, stride in zip(matrix.shape, matrix.stride, strict=True) if size > 1 and stride != 1
    ]
    return (*steps, matrix.offset)
