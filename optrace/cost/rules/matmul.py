"""Matrix products through cuBLAS: one GEMM kernel, 2 x multiply-adds."""

from __future__ import annotations

import math

from optrace.cost.profiles import Target
from optrace.cost.rules.table import inputs_read, rule, streaming
from optrace.cost.work import Work
from optrace.graph import OpNode, TensorMeta


def _product(node: OpNode, left: TensorMeta, right: TensorMeta, *, extra_flops: int = 0) -> Work:
    """``[..., m, k] @ [..., k, n]``."""
    batch = math.prod(left.shape[:-2])
    rows, inner = left.shape[-2:]
    columns = right.shape[-1]
    flops = 2 * batch * rows * inner * columns
    if not batch * rows * columns or not inner:
        return streaming(node, kind="elementwise")
    return streaming(
        node,
        flops=flops + extra_flops,
        matmul_flops=flops,
        kind="matmul",
        math_dtype=left.dtype,
        reads=inputs_read(node),
    )


@rule("aten.mm", "aten.bmm")
def multiplies(node: OpNode, _target: Target) -> Work:
    return _product(node, node.tensor("self"), node.tensor("mat2"))


@rule("aten.addmm", "aten.baddbmm", "aten._addmm_activation", "aten.addbmm")
def multiplies_and_adds(node: OpNode, _target: Target) -> Work:
    """The bias is added in the GEMM's epilogue (Blas.cpp), one FLOP an output element."""
    left, right = ("batch1", "batch2") if "bmm" in node.op else ("mat1", "mat2")
    return _product(
        node, node.tensor(left), node.tensor(right), extra_flops=sum(t.numel for t in node.outputs)
    )


@rule("aten._scaled_mm", "aten._int_mm")
def multiplies_low_precision(node: OpNode, _target: Target) -> Work:
    """fp8 or int8 operands; scales ride along (ScaledBlas.cpp)."""
    return _product(node, node.tensor("self"), node.tensor("mat2"))


@rule("aten.mv", "aten.addmv")
def matrix_vector(node: OpNode, _target: Target) -> Work:
    matrix = node.tensor("self" if node.facts.packet == "aten.mv" else "mat")
    flops = 2 * matrix.numel
    return streaming(node, flops=flops, matmul_flops=flops, kind="matmul", math_dtype=matrix.dtype)


@rule("aten.dot", "aten.vdot")
def inner_product(node: OpNode, _target: Target) -> Work:
    flops = 2 * node.inputs[0].numel
    return streaming(node, flops=flops, matmul_flops=flops, kind="matmul", math_dtype=node.inputs[0].dtype)


@rule("aten._grouped_mm")
def grouped_products(node: OpNode, _target: Target) -> Work:
    """Every row of the ragged side meets one group's matrix: 2 x rows x k x n (GroupedBlas.cpp)."""
    left, right = node.tensor("self"), node.tensor("mat2")
    flops = 2 * math.prod(left.shape) * right.shape[-1]
    if len(left.shape) == 2 and len(right.shape) == 2:
        flops = 2 * left.shape[0] * left.shape[1] * right.shape[1]
    return streaming(node, flops=flops, matmul_flops=flops, kind="matmul", math_dtype=left.dtype)


@rule("aten._cdist_forward")
def distances(node: OpNode, _target: Target) -> Work:
    """Subtract, power and add for each pair and coordinate (DistanceKernel.cu)."""
    left, right = node.inputs[:2]
    flops = 3 * left.numel * right.shape[-2]
    return streaming(node, flops=flops, kind="reduction")
