"""Ops whose launches a library chooses by size, or by the values: no count is better than a wrong one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from optrace.cost.profiles import Target
from optrace.cost.rules.matmul import grouped_flops
from optrace.cost.rules.table import rule, streaming
from optrace.cost.work import Work
from optrace.graph import OpNode


def _launches_not_known(node: OpNode, flops: int | None, matmul_flops: int | None) -> Work:
    """Bytes are those of the operands."""
    return replace(streaming(node, flops=flops), kernels=None, matmul_flops=matmul_flops, source="unknown")


@rule("aten._fft_c2c", "aten._fft_c2r", "aten._fft_r2c")
def transforms(node: OpNode, _target: Target) -> Work:
    """cuFFT: a plan's kernels depend on the factors of the length. By convention ``5 n log2(n)`` FLOPs a complex
    transform of ``n`` points, half for a real one."""
    (signal, spectrum), dims = (node.inputs[0], node.outputs[0]), node.arg("dim")
    assert isinstance(dims, tuple)
    real = spectrum if node.facts.packet == "aten._fft_c2r" else signal
    points = math.prod(real.shape[dim] for dim in dims if isinstance(dim, int))
    half = 1 if node.facts.packet == "aten._fft_c2c" else 2
    each = 5 * points * math.log2(points) / half if points else 0.0
    return _launches_not_known(node, round(each * (real.numel // points if points else 0)), 0)


@rule(
    "aten._mixed_dtypes_linear",
    "aten._weight_int4pack_mm",
    "aten._weight_int8pack_mm",
    "aten.mkldnn_linear",
)
def multiplies_packed_weights(node: OpNode, _target: Target) -> Work:
    """Products with weights in a packed form: each library has its own kernels. 2 x rows x k x n as for plain ones."""
    flops = 2 * node.inputs[0].numel * node.outputs[0].shape[-1]
    return _launches_not_known(node, flops, flops)


@rule("aten._scaled_grouped_mm")
def multiplies_scaled_groups(node: OpNode, _target: Target) -> Work:
    """A product a group in fp8 (ScaledGroupMM.cu)."""
    flops = grouped_flops(node.tensor("self"), node.tensor("mat2"))
    return _launches_not_known(node, flops, flops)


#: Leading terms of what factoring and solving take, for matrices of ``m`` rows and ``n`` columns and ``k`` right sides
#: (Golub and Van Loan, Matrix Computations).
_DECOMPOSITIONS: dict[str, Callable[[int, int, int], float]] = {
    "aten._linalg_det": lambda _m, n, _k: 2 * n**3 / 3,
    "aten._linalg_slogdet": lambda _m, n, _k: 2 * n**3 / 3,
    "aten._linalg_solve_ex": lambda _m, n, k: 2 * n**3 / 3 + 2 * n**2 * k,
    "aten.cholesky": lambda _m, n, _k: n**3 / 3,
    "aten.linalg_cholesky_ex": lambda _m, n, _k: n**3 / 3,
    "aten.cholesky_inverse": lambda _m, n, _k: 2 * n**3 / 3,
    "aten.geqrf": lambda m, n, _k: 2 * min(m, n) ** 2 * (max(m, n) - min(m, n) / 3),
    "aten.linalg_inv_ex": lambda _m, n, _k: 2 * n**3,
    "aten.linalg_lu": lambda m, n, _k: min(m, n) ** 2 * (max(m, n) - min(m, n) / 3),
    "aten.linalg_lu_factor_ex": lambda m, n, _k: min(m, n) ** 2 * (max(m, n) - min(m, n) / 3),
}

#: Solving with given factors, by the place of the factors among the inputs: ``n**2 k`` a triangle.
_TRIANGLES = {
    "aten.cholesky_solve": (1, 2),
    "aten.linalg_lu_solve": (0, 2),
    "aten.linalg_solve_triangular": (0, 1),
    "aten.triangular_solve": (1, 1),
}


@rule(*_DECOMPOSITIONS)
def decomposes(node: OpNode, _target: Target) -> Work:
    """cuSOLVER and MAGMA choose their kernels by size. No matmul by convention."""
    matrix = node.inputs[0]
    m, n = matrix.shape[-2:]
    right = node.inputs[1].shape if len(node.inputs) > 1 else ()
    sides = right[-1] if len(right) == len(matrix.shape) else 1
    each = _DECOMPOSITIONS[node.facts.packet](m, n, sides)
    return _launches_not_known(node, round(each * math.prod(matrix.shape[:-2])), 0)


@rule(*_TRIANGLES)
def solves(node: OpNode, _target: Target) -> Work:
    """Substitution, forward and back."""
    place, triangles = _TRIANGLES[node.facts.packet]
    factors = node.inputs[place]
    solution = node.outputs[0]
    return _launches_not_known(node, triangles * factors.shape[-1] * solution.numel, 0)


@rule(
    # Iterations until they converge.
    "aten._linalg_eigh",
    "aten._linalg_eigvals",
    "aten._linalg_svd",
    "aten.linalg_eig",
    "aten.linalg_ldl_factor_ex",
    "aten.linalg_lstsq",
    "aten.linalg_qr",
    "aten.lu_unpack",
    "aten.ormqr",
    # Steps over the longest target; cuDNN's variant chooses for itself.
    "aten._ctc_loss",
    "aten._ctc_loss_backward",
    "aten._cudnn_ctc_loss",
    # A bitonic or a radix sort and a scan of runs.
    "aten.mode",
    # Distances by GEMM or by a kernel for each norm.
    "aten._cdist_backward",
    "aten._pdist_backward",
    "aten._pdist_forward",
    # Made of other ops, whose number depends on sizes.
    "aten._unsafe_masked_index",
    "aten._unsafe_masked_index_put_accumulate",
    "aten.affine_grid_generator",
    "aten.linalg_matrix_exp",
    "aten.linalg_pinv",
    "aten.renorm",
    "aten.renorm_",
    # Products of three tensors, in an order that depends on their sizes.
    "aten._trilinear",
)
def launches_are_not_known(node: OpNode, _target: Target) -> Work:
    """Bytes are those of the operands; launches and arithmetic are not known."""
    return _launches_not_known(node, None, None)


@rule("aten.unique_consecutive", "aten._unique2", "aten.unique_dim", "aten.masked_scatter_backward")
def size_depends_on_the_values(node: OpNode, _target: Target) -> Work:
    """Sort, mark, compact; the host waits for the number found (Unique.cu, UniqueCub.cu)."""
    work = streaming(node, flops=None, kind="gather", host_wait=True)
    return replace(work, kernels=None, source="unknown")
