"""Ops whose launches a library chooses by size, or by the values: no count is better than a wrong one."""

from __future__ import annotations

from dataclasses import replace

from optrace.cost.profiles import Target
from optrace.cost.rules.table import rule, streaming
from optrace.cost.work import Work
from optrace.graph import OpNode


@rule(
    # cuFFT: a plan's kernels depend on the factors of the length.
    "aten._fft_c2c",
    "aten._fft_c2r",
    "aten._fft_r2c",
    # cuSOLVER and MAGMA.
    "aten._linalg_det",
    "aten._linalg_eigh",
    "aten._linalg_eigvals",
    "aten._linalg_slogdet",
    "aten._linalg_solve_ex",
    "aten._linalg_svd",
    "aten.cholesky",
    "aten.cholesky_inverse",
    "aten.cholesky_solve",
    "aten.geqrf",
    "aten.linalg_cholesky_ex",
    "aten.linalg_eig",
    "aten.linalg_inv_ex",
    "aten.linalg_ldl_factor_ex",
    "aten.linalg_lstsq",
    "aten.linalg_lu",
    "aten.linalg_lu_factor_ex",
    "aten.linalg_lu_solve",
    "aten.linalg_qr",
    "aten.linalg_solve_triangular",
    "aten.lu_unpack",
    "aten.ormqr",
    "aten.triangular_solve",
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
)
def launches_are_not_known(node: OpNode, _target: Target) -> Work:
    """Bytes are those of the operands; launches and arithmetic are not known."""
    return replace(streaming(node, flops=None), kernels=None, matmul_flops=None, source="unknown")


@rule("aten.unique_consecutive", "aten._unique2", "aten.unique_dim")
def size_depends_on_the_values(node: OpNode, _target: Target) -> Work:
    """Sort, mark, compact; the host waits for the number found (Unique.cu, UniqueCub.cu)."""
    work = streaming(node, flops=None, kind="gather", host_wait=True)
    return replace(work, kernels=None, source="unknown")
