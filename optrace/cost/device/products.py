"""Matrix products, convolutions as products and fused attention: what is multiplied, in which launches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from optrace.cost.device.kernel import MEMSET, SMALL, Kernel, Launch, Product, launches
from optrace.cost.device.streams import STRIDED_BLOCK, copy, over, pointwise
from optrace.cost.profiles import Target
from optrace.cost.rules.gemm import Gemm, plan
from optrace.cost.rules.layouts import contiguous
from optrace.cost.rules.matmul import bias_is_fused, first_matrix, gemm_of, is_walkable
from optrace.cost.work import Work
from optrace.graph import OpNode, TensorMeta


def product(gemm: Gemm, work_bytes: float, target: Target, itemsize: int) -> list[Launch]:
    """The launches of one product, in order."""
    made = plan(gemm, target)
    kind: str = made.family
    if kind == "simt":
        layout = ("t" if gemm.left_transposed else "n") + ("t" if gemm.right_transposed else "n")
        kind = f"simt_{layout}"
    along_k = gemm.right_transposed and not gemm.left_transposed
    if kind == "tensor_op" and gemm.odd and along_k and gemm.batch == 1:
        kind = "tensor_op_nt"
    if kind == "thin":
        return [_thin(gemm, work_bytes), *[SMALL] * (made.kernels - 1)]
    main = Product(
        kind,
        target.product_dtype(gemm.dtype),
        gemm.m,
        gemm.n,
        gemm.k,
        gemm.batch,
        work_bytes,
        split=made.splits > 1,
        most_parts=_most_parts(gemm) if made.family == "simt" else MOST_PARTS,
    )
    result = gemm.batch * gemm.m * gemm.n
    if made.family == "simt" and made.memsets and made.kernels == 1 and gemm.m <= FEW_ROWS:
        # Parts of k are added up in place, each waiting for its turn.
        if made.splits >= target.sm_count:
            return [MEMSET, Kernel("shares_in_turn", work_bytes, 0.0, made.splits)]
        parts = min(MOST_TURNS, gemm.k // TURN_DEPTH) if 2 * gemm.m <= FEW_ROWS else FEW_TURNS
        return [MEMSET, Kernel("serial_split", work_bytes, 0.0, parts + gemm.k / parts / STEPS_A_TURN)]
    if made.kernels == SCALED_FIRST and gemm.fused_bias:
        # The output is scaled by beta, parts of k are added to it atomically, and the bias comes last.
        tiles = gemm.tiles(32, 32)
        parts = max(3, min(5, ATOMIC_BLOCKS // tiles + 1))
        added = Kernel("atomic_split", work_bytes, tiles * parts, gemm.k / parts)
        return [*[MEMSET] * made.memsets, SMALL, added, Kernel("vectorized", 2.0 * result * itemsize)]
    partial = Kernel(
        "split_sum", result * (4.0 * made.splits + itemsize), result / STRIDED_BLOCK, made.splits
    )
    rest = partial if made.splits > 1 else SMALL
    return [*[MEMSET] * made.memsets, main, *[rest] * (made.kernels - 1)]


def _most_parts(gemm: Gemm) -> int:
    """cuBLASLt takes a part for 64 steps of k, and few of them where there are more than a few tiles."""
    if not gemm.fused_bias:
        return MOST_PARTS
    return max(1, min(MOST_LT_PARTS if gemm.tiles(64, 64) >= LT_TILES else MOST_PARTS, gemm.k // TURN_DEPTH))


#: The most parts of k; of cuBLASLt's products of so many 64 x 64 tiles and more.
MOST_PARTS, MOST_LT_PARTS, LT_TILES = 64, 7, 8
#: Parts of k that are added up in turn: of cutlass's kernels, and of the others; the steps of depth that take as
#: long as a turn; and the rows up to which turns are all that counts.
MOST_TURNS, TURN_DEPTH, FEW_TURNS, STEPS_A_TURN, FEW_ROWS = 32, 64, 5, 75, 32
#: Blocks up to which ``sgemm_largek`` shares out the depth in more parts.
ATOMIC_BLOCKS = 250
#: Kernels of a product whose output is scaled first (``sgemm_largek``).
SCALED_FIRST = 3


#: Columns of a block of ``gemmSN``, and the rows that it takes in one pass.
THIN_COLUMNS, THIN_ROWS = 8, 12


def _thin(gemm: Gemm, nbytes: float) -> Kernel:
    """A few rows times a matrix: a block walks all of the depth for eight columns, row after row."""
    if min(gemm.m, gemm.n) == 1:
        return _vector(max(gemm.m, gemm.n), gemm.k, nbytes)
    passes = 1 if gemm.m <= THIN_ROWS else 2
    blocks = passes * math.ceil(gemm.n / THIN_COLUMNS)
    return Kernel("thin_rows", nbytes, blocks, gemm.k * (math.ceil(gemm.m / passes) + 1) / 1000)


def _vector(rows: float, depth: float, nbytes: float) -> Kernel:
    """A matrix times a vector; a single row is shared out over the GPU (``dot``)."""
    return Kernel("dot" if rows == 1 or depth >= 1 << 16 else "gemv", nbytes, rows, depth / 1000)


@launches("aten.mm", "aten.bmm", "aten._int_mm", "aten._scaled_mm")
def multiplies(node: OpNode, work: Work, target: Target) -> Sequence[Launch]:
    return _with_copies(node, work, target, node.inputs[0], node.inputs[1])


@launches("aten.addbmm", "aten.addbmm_")
def adds_products(node: OpNode, work: Work, target: Target) -> Sequence[Launch]:
    """A copy of the addend, then a product a batch."""
    left, right = node.tensor("batch1"), node.tensor("batch2")
    batches = left.shape[0]
    nbytes = work.tensor_bytes / max(1, batches)
    one = product(gemm_of(first_matrix(left), first_matrix(right)), nbytes, target, left.itemsize)
    addend, result = node.tensor("self"), node.outputs[0]
    if work.memcpys:
        copied = [Kernel("memcpy", 2.0 * addend.nbytes)]
    elif node.arg("beta", 1) != 0 and not any(node.writes):
        copied = [over(result.shape, result, addend)]
    else:
        copied = []
    return [*copied, *one * batches]


@launches("aten.addmm", "aten.addmm_", "aten.baddbmm", "aten.baddbmm_", "aten._addmm_activation")
def multiplies_and_adds(node: OpNode, work: Work, target: Target) -> Sequence[Launch]:
    batched = node.facts.packet.startswith("aten.baddbmm")
    left, right = ("batch1", "batch2") if batched else ("mat1", "mat2")
    addend, mat1, mat2 = node.tensor("self"), node.tensor(left), node.tensor(right)
    fused = not batched and bias_is_fused(node, addend, mat2)
    first: list[Launch] = []
    if not fused and node.arg("beta", 1) != 0 and not any(node.writes):
        result = node.outputs[0]
        first = (
            [copy(addend, result)] if addend.shape == result.shape else [over(result.shape, result, addend)]
        )
    return [*first, *_with_copies(node, work, target, mat1, mat2, fused=fused)]


def _with_copies(
    node: OpNode, work: Work, target: Target, left: TensorMeta, right: TensorMeta, *, fused: bool = False
) -> list[Launch]:
    gemm = gemm_of(left, right, fused_bias=fused)
    if not work.launches:
        return []
    if not gemm.k:
        return [pointwise(node, work)]
    copied = [tensor for tensor in (left, right) if not is_walkable(tensor)]
    nbytes = float(work.tensor_bytes + sum(access.nbytes for access in work.rereads))
    return [
        *(copy(tensor, contiguous(tensor)) for tensor in copied),
        *product(gemm, nbytes, target, left.itemsize),
    ]


@launches("aten.mv", "aten.addmv", "aten.addmv_", "aten.dot", "aten.vdot")
def vectors(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    matrix = max(node.inputs, key=lambda tensor: tensor.numel)
    count = work.kernels or 1
    rows = matrix.shape[0] if len(matrix.shape) > 1 else 1
    one = _vector(rows, matrix.numel / max(1, rows), float(work.tensor_bytes))
    return [*[Kernel("memcpy")] * work.memcpys, one, *[SMALL] * (count - 1)]


@launches("aten._grouped_mm")
def grouped(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    """Each group has an equal part of a ragged side; a ragged depth takes as long as one deep product (H200)."""
    left, right = node.tensor("self"), node.tensor("mat2")
    groups = max((tensor.shape[0] for tensor in (left, right) if len(tensor.shape) == 3), default=1)
    m, n = left.shape[-2], right.shape[-1]
    if len(left.shape) < len(right.shape):
        m = math.ceil(m / groups)
    elif len(left.shape) > len(right.shape):
        n = math.ceil(n / groups)
    return [SMALL, Product("grouped", left.dtype, m, n, left.shape[-1], groups, float(work.tensor_bytes))]
