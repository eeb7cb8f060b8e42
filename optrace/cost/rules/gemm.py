"""How cuBLAS splits one matrix product over the GPU: tiles, waves, split-K, and what it launches for that.

PyTorch hands every product to cuBLAS or cuBLASLt, whose heuristics are not published. This is a model of them,
read off kernel names, grids and launches of torch 2.11 (CUDA 13) on an H200: four kernel families, each with
its own logic, and few thresholds.

* ``warp_specialized``: Hopper's half-precision kernels (``nvjet``). Persistent: one CTA an SM takes tile after
  tile. Up to two tiles a CTA are dealt out in advance; beyond that the CTAs draw them from a counter, which a
  4-byte memset zeroes first. Kernel names carry their tiles; the tile modelled here is often a size smaller where
  several sizes need one round.
* ``simt``: float32 (TF32 off, PyTorch's default) and float64 kernels. Too few tiles for the SMs are split along
  k: partial sums are reduced by a second kernel, or added up in place in tile order, which takes a memset of one
  semaphore a tile. Two launches either way.
* ``tf32``: float32 where TF32 is on: Hopper's kernels, drawn from a counter as the former are, and Ampere's, split
  along k with a second kernel where tiles are few.
* ``thin``: a few rows times a matrix (``gemv``, ``gemmSN``), one launch.

How many calls of a record it gets right, ``optrace accuracy RECORD --op aten.mm`` says (and ``aten.addmm``,
``aten.bmm``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from optrace.cost.profiles import Target

Family = Literal["warp_specialized", "tensor_op", "tf32", "simt", "thin"]

#: Output tiles (rows, columns) of Hopper's half-precision kernels, small to large; either side may be the rows.
_WARP_SPECIALIZED_TILES = tuple(
    tile
    for rows, columns in (
        *((8, side) for side in (128, 256)),
        *((64, side) for side in (8, 16, 24, 32, 40, 48, 64, 72, 80, 96, 128, 160, 192, 256, 512)),
        *((128, side) for side in (80, 96, 128, 144, 160, 192, 256, 320)),
        *((192, side) for side in (48, 96, 128, 144, 192)),
        (256, 144),
    )
    for tile in {(rows, columns), (columns, rows)}
)
#: Tiles of float32 products whose k is not split, and how fast they are, relative to each other: fitted to the kernel names
#: of two thirds of the families of 171 products, 60 % of which get the right tile.
_WHOLE_RATES = {
    (32, 32): 0.55, (32, 64): 0.55, (64, 64): 0.96, (128, 32): 0.88, (64, 128): 0.98, (128, 64): 0.99, (128, 128): 1.2,
}  # fmt: skip

#: A warp-specialized tile of ``k`` takes at least this many k-steps' worth of time to fill and drain.
_PIPELINE_FILL_K = 64
#: Below this depth, or with more 64 x 64 tiles than a share of it, half-precision split-K does not pay.
_HALF_SPLIT_MIN_K = 2560
_HALF_SPLIT_K_PER_TILE = 96
#: SIMT split-K: the depth from which it pays at all, and when half the SMs (a third, of a left operand that lies transposed)
#: have a tile already.
_SIMT_SPLIT_MIN_K = 256
_SIMT_SPLIT_BUSY_K = 320
#: TF32 split-K with fewest tiles: the depth from which it pays; else the depth a tile.
_TF32_SPLIT_MIN_K, _TF32_SPLIT_K_PER_TILE = 160, 16
#: The depth from which Hopper's kernels are chosen for many tiles.
_TF32_DRAWN_MIN_K = 256
#: The same of half-precision kernels without Hopper's: deep enough for many tiles, and for few.
_TENSOR_OP_DEEP_K, _TENSOR_OP_SHALLOW_K = 1536, 130
#: More 64 x 64 tiles than so many an SM: the GPU is busy, and k is shared out only to even out rounds.
_SIMT_BUSY = 1.125
#: Share of the peak that tiles reach, steps of k that fill a pipeline, and what parts of k cost: for each such product,
#: for each partial sum; the least depth of a part; and rounds lost where no more than two follow each other. Fitted to
#: products of a record and of a sweep.
_SIMT_RATES = {
    (32, 32): 0.53, (32, 64): 0.69, (64, 32): 0.69, (64, 64): 0.74, (64, 128): 0.88, (128, 64): 0.88,
    (128, 128): 0.95, (64, 256): 1.0, (256, 64): 1.0, (128, 256): 1.0, (256, 128): 1.0,
}  # fmt: skip
_SIMT_FILL_K, _SPLIT_COST, _PART_COST, _SIMT_LEAST_PART_K, _ALONE = 16, 10_000, 0.4, 128, 0.1
#: Bytes of partial sums beyond which they are added up in place.
_LARGEST_PARTIAL_SUMS = 20_000_000
#: Depth up to which cuBLASLt leaves a product whole although some SMs have no tile: of few 32 x 32 tiles, and a tile.
_LT_SHALLOW_K, _LT_SHALLOW_K_PER_TILE = 400, 6
#: Rows that one launch of a SIMT kernel reaches: 65,535 blocks of 16.
_MAX_SIMT_ROWS = 65_535 * 16
#: Share of the L2 that keeps operands (the rest is lost to conflicts and to both halves keeping a copy).
_L2_USABLE_SHARE = 0.8
#: By how much more than that, as a share of it, none is found again.
_ALL_MISSED = 1 / 3
#: Columns of tiles that CUTLASS's grid holds side by side; CTAs of the other kernels that an SM keeps in step.
_SWIZZLED_COLUMNS, _CTAS_A_SM = 8, 2
#: SIMT kernels load k in slices of this depth.
_SIMT_SLICE_K = 8
#: A few rows whose k is shared out over all SMs: the most rows, the kernel's tile, the most tiles, and those up to which
#: each SM takes two shares. Seen with 8 rows and one to three tiles.
_SHARED_ROWS, _SHARED_TILE, _SHARED_TILES, _TWICE_SHARED_TILES = 16, (32, 128), 3, 2
#: The depth from which SIMT kernels prefer few large split tiles.
_DEEP_K = 2048


@dataclass(frozen=True, slots=True)
class Gemm:
    """``batch`` products of ``[m, k]`` and ``[k, n]``, in PyTorch's row-major terms.

    ``left_transposed``: the left operand lies column-major; ``right_transposed`` likewise (a ``Linear`` weight).
    ``aligned``: rows start at multiples of 16 bytes; ``odd``: some at an odd element, so that elements are loaded one by
    one. ``fused_bias``: a bias vector is added in the epilogue.
    """

    m: int
    n: int
    k: int
    dtype: str
    batch: int = 1
    left_transposed: bool = False
    right_transposed: bool = False
    aligned: bool = True
    odd: bool = False
    fused_bias: bool = False

    @property
    def is_half(self) -> bool:
        return (
            self.dtype in ("float16", "bfloat16") or self.dtype.startswith("float8") or self.dtype == "int8"
        )

    def tiles(self, rows: int, columns: int) -> int:
        """Tiles of this shape that cover the output."""
        return self.batch * math.ceil(self.m / rows) * math.ceil(self.n / columns)


@dataclass(frozen=True, slots=True)
class GemmPlan:
    """What one product launches. ``waves``: rounds of tiles over the SMs. ``splits``: parts of k.

    ``workspace_elements``: float32 partial sums written and read back.
    """

    family: Family
    tile: tuple[int, int]
    tiles: int
    waves: int
    splits: int = 1
    kernels: int = 1
    memsets: int = 0
    workspace_elements: int = 0


def plan(gemm: Gemm, target: Target) -> GemmPlan:
    """The kernels that cuBLAS is expected to launch for ``gemm``."""
    if gemm.is_half:
        if target.capability >= (9, 0) and gemm.aligned:
            return _warp_specialized(gemm, target)
        return _tensor_op(gemm, target)
    if target.product_dtype(gemm.dtype) == "tf32" and min(gemm.m, gemm.n) > 1:
        return _tf32(gemm, target)
    return _simt(gemm, target)


def _plan(
    gemm: Gemm,
    target: Target,
    family: Family,
    tile: tuple[int, int],
    *,
    splits: int = 1,
    kernels: int = 1,
    memsets: int = 0,
) -> GemmPlan:
    tiles = gemm.tiles(*tile)
    return GemmPlan(
        family,
        tile,
        tiles,
        waves=math.ceil(tiles * splits / target.sm_count),
        splits=splits,
        kernels=kernels,
        memsets=memsets,
        workspace_elements=splits * gemm.batch * gemm.m * gemm.n if kernels > 1 else 0,
    )


def _warp_specialized(gemm: Gemm, target: Target) -> GemmPlan:
    """The tile that ends soonest: rounds over the SMs x (work of a tile + filling its pipeline)."""

    def time(tile: tuple[int, int]) -> tuple[float, int]:
        rows, columns = tile
        waves = math.ceil(gemm.tiles(rows, columns) / target.sm_count)
        return waves * (rows * columns + _PIPELINE_FILL_K * (rows + columns)), -rows * columns

    tile = min(_WARP_SPECIALIZED_TILES, key=time)
    tiles64 = gemm.tiles(64, 64)
    if gemm.k >= max(_HALF_SPLIT_MIN_K, _HALF_SPLIT_K_PER_TILE * tiles64):
        splits = max(2, min(gemm.k // 512, target.sm_count // gemm.tiles(*tile)))
        return _plan(gemm, target, "warp_specialized", tile, splits=splits, kernels=2)
    drawn = gemm.tiles(*tile) > 2 * target.sm_count
    return _plan(gemm, target, "warp_specialized", tile, memsets=int(drawn))


def _tensor_op(gemm: Gemm, target: Target) -> GemmPlan:
    """Older tensor-core kernels, one tile a CTA: GPUs before Hopper, and rows that are not 16-byte aligned.

    Too few tiles for the SMs are split along a deep k: partial sums are reduced by a second kernel, or added up in
    place, behind a memset of the tiles' semaphores, where k is very deep, they would be large or a bias is added
    (cuBLASLt).
    """
    if gemm.batch == 1 and min(gemm.m, gemm.n) == 1:
        return _plan(gemm, target, "thin", (1, 8))
    deep = gemm.k >= 4 * _DEEP_K
    tile = (128, 128) if deep or gemm.tiles(128, 128) >= 0.45 * target.sm_count else (64, 64)
    if gemm.batch > 1 or not _splits_tensor_op(gemm, target):
        return _plan(gemm, target, "tensor_op", tile)
    splits = max(2, min(gemm.k // 128, 2 * target.sm_count // gemm.tiles(*tile)))
    if deep or gemm.fused_bias or 4 * splits * gemm.m * gemm.n > _LARGEST_PARTIAL_SUMS:
        return _plan(gemm, target, "tensor_op", tile, splits=splits, memsets=1)
    return _plan(gemm, target, "tensor_op", tile, splits=splits, kernels=2)


def _splits_tensor_op(gemm: Gemm, target: Target) -> bool:
    """Whether k is deep enough for the SMs that tiles leave idle. Without a bias (cuBLAS) shallower products of few tiles
    are split too, untransposed ones at any depth, as float32 ones are."""
    small, large = gemm.tiles(64, 64), gemm.tiles(128, 128)
    if gemm.k >= 4 * _DEEP_K or (gemm.k >= _DEEP_K and large <= target.sm_count):
        return True
    if gemm.fused_bias:
        return False
    if gemm.k >= _TENSOR_OP_DEEP_K and large <= target.sm_count:
        return True
    untransposed = not (gemm.left_transposed or gemm.right_transposed)
    if untransposed and gemm.k > _SIMT_SLICE_K and small <= target.sm_count // 8:
        return True
    return small < target.sm_count // 4 and gemm.k >= _TENSOR_OP_SHALLOW_K


def _tf32(gemm: Gemm, target: Target) -> GemmPlan:
    """float32 in TF32: Hopper's kernels for much work, drawn from a counter as those of half precision are, and Ampere's,
    split along k with a second kernel where tiles are few."""
    tiles = gemm.tiles(64, 64)
    if gemm.batch == 1 and (
        (tiles <= target.sm_count // 8 and gemm.k >= _TF32_SPLIT_MIN_K)
        or (
            not gemm.fused_bias and tiles <= target.sm_count // 2 and gemm.k >= _TF32_SPLIT_K_PER_TILE * tiles
        )
    ):
        splits = max(2, min(gemm.k // 64, target.sm_count // tiles))
        return _plan(gemm, target, "tf32", (64, 64), splits=splits, kernels=2)
    tile = (128, 128) if gemm.tiles(128, 128) >= target.sm_count // 2 else (64, 64)
    drawn = gemm.tiles(*tile) > 2 * target.sm_count and gemm.k >= _TF32_DRAWN_MIN_K
    return _plan(gemm, target, "tf32", tile, memsets=int(drawn))


def _simt(gemm: Gemm, target: Target) -> GemmPlan:
    if gemm.batch == 1 and gemm.m > _MAX_SIMT_ROWS and gemm.n > 1:
        # The grid reaches no further: the rows beyond are a product of their own.
        first = _simt(replace(gemm, m=_MAX_SIMT_ROWS), target)
        rest = _simt(replace(gemm, m=gemm.m - _MAX_SIMT_ROWS), target)
        return replace(
            first,
            kernels=first.kernels + rest.kernels,
            memsets=first.memsets + rest.memsets,
            workspace_elements=first.workspace_elements + rest.workspace_elements,
        )
    if gemm.batch == 1 and min(gemm.m, gemm.n) == 1:
        # A matrix times a vector: gemv. Long dot products, or few of them, go to the dot kernel and its second stage.
        dots = gemm.k >= 1 << 16 or (max(gemm.m, gemm.n) <= 128 and gemm.k >= 1024)
        return _plan(gemm, target, "thin", (1, 8), kernels=2 if dots else 1)
    if _is_thin(gemm, target):
        return _plan(gemm, target, "thin", (8, 8))
    shares = _shares_of_k(gemm, target)
    if shares:
        return _plan(gemm, target, "simt", _SHARED_TILE, splits=shares, memsets=1)
    parts = _simt_parts(gemm, target) if gemm.batch == 1 else None
    if parts is None:
        return _plan(gemm, target, "simt", _simt_tile(gemm, target))
    tile, splits = parts
    if gemm.fused_bias and _splits_without_workspace(gemm):
        return _plan(gemm, target, "simt", (32, 32), splits=4, kernels=3, memsets=1)
    if not _adds_in_place(gemm, tile, splits, target):
        return _plan(gemm, target, "simt", tile, splits=splits, kernels=2)
    made = _plan(gemm, target, "simt", tile, splits=splits, memsets=1)
    if gemm.fused_bias or tile[0] * tile[1] >= 256 * 128:
        return made  # CUTLASS adds the parts up in the output itself
    # Each tile's parts but the last go through the workspace: those of a large tile through one place, in which they are
    # added up (1500 x 1536 in three left 9.4 MiB dirty on an H200 besides its 8.8), of a small one each through its own.
    places = 1 if tile[0] * tile[1] >= 128 * 128 else splits - 1
    return replace(made, workspace_elements=places * gemm.m * gemm.n)


def _simt_tile(gemm: Gemm, target: Target) -> tuple[int, int]:
    """The tile that ends soonest: rounds over the SMs x a tile's work at its rate."""

    def time(tile: tuple[int, int]) -> float:
        return math.ceil(gemm.tiles(*tile) / target.sm_count) * tile[0] * tile[1] / _WHOLE_RATES[tile]

    return min(_WHOLE_RATES, key=time)


def _is_thin(gemm: Gemm, target: Target) -> bool:
    """At most 16 rows and contiguous rows on the left: ``gemmSN``, whose CTAs walk all of k.

    Eight columns a CTA with a transposed right operand (up to 12 rows in one pass), 64 columns and 4 rows
    otherwise; used where that occupies the SMs or where k is short, and by cuBLASLt for up to four rows always.
    """
    if gemm.batch > 1 or gemm.m > 16 or gemm.left_transposed:
        return False
    if gemm.right_transposed:
        passes = 1 if gemm.m <= 12 else 2
        walked = gemm.k * passes
        ctas = math.ceil(gemm.n / 8) * passes
        if not gemm.fused_bias:
            return walked <= 64 or (passes == 1 and ctas >= 0.9 * target.sm_count)
        fills = ctas >= 0.9 * target.sm_count * (1 if passes == 1 else 1.5)
        return gemm.m <= 4 or walked <= 1024 or gemm.n <= 16 or (fills and (passes == 1 or walked <= 2048))
    return gemm.k <= 1024 and (
        gemm.k <= 64 or math.ceil(gemm.n / 64) * math.ceil(gemm.m / 4) >= target.sm_count
    )


def _shares_of_k(gemm: Gemm, target: Target) -> int:
    """Shares of k of a few rows that ``gemmSN`` would leave most SMs idle with; 0 where they are not shared out so.

    cuBLAS then starts as many CTAs a tile as there are SMs, or twice as many, however short k is (8 x 384 x 128: 132 shares,
    116 of them of nothing). Each waits for its turn to add its own to the result, behind a memset of the tiles' semaphores.
    """
    if gemm.batch > 1 or gemm.fused_bias or gemm.left_transposed or gemm.m > _SHARED_ROWS:
        return 0
    tiles = gemm.tiles(*_SHARED_TILE)
    if tiles > _SHARED_TILES:
        return 0
    return target.sm_count * (2 if tiles <= _TWICE_SHARED_TILES else 1)


def _simt_parts(gemm: Gemm, target: Target) -> tuple[tuple[int, int], int] | None:
    """The tile and the parts of k that a float32 product is shared out in; None where it is not."""
    by_rounds = not gemm.fused_bias and gemm.tiles(64, 64) > _SIMT_BUSY * target.sm_count
    if by_rounds and not (gemm.left_transposed and gemm.k >= _DEEP_K):
        return _parts_by_rounds(gemm, target)
    if not _splits_simt(gemm, target):
        return None
    tile = (256, 128) if gemm.k >= _DEEP_K and gemm.m * gemm.n >= 1 << 18 else (64, 64)
    return tile, max(2, min(gemm.k // 64, target.sm_count // gemm.tiles(*tile)))


def _parts_by_rounds(gemm: Gemm, target: Target) -> tuple[tuple[int, int], int] | None:
    """Every SM has a tile already, but the last round of tiles may leave most of them idle: parts of k even that out.

    The choice that ends soonest, in multiply-adds at full rate: rounds over the SMs x (a tile's work + filling its
    pipeline), and for parts of k what they cost to add up. One tile or two hide less of an SM's waiting than more do.
    """

    def time(tile: tuple[int, int], parts: int) -> float:
        rounds: float = math.ceil(gemm.tiles(*tile) * parts / target.sm_count)
        rounds += _ALONE if rounds <= 2 else 0.0
        each = tile[0] * tile[1] / _SIMT_RATES[tile] * (gemm.k / parts + _SIMT_FILL_K)
        return rounds * each + (parts > 1) * (_SPLIT_COST + _PART_COST * parts * gemm.m * gemm.n)

    choices = [
        (time(tile, parts), tile, parts)
        for tile in _SIMT_RATES
        for parts in (1, 2, 3, 4, 5, 6, 8)
        if parts == 1 or gemm.k >= parts * _SIMT_LEAST_PART_K
    ]
    _, tile, parts = min(choices)
    return (tile, parts) if parts > 1 else None


def _splits_simt(gemm: Gemm, target: Target) -> bool:
    """Whether a float32 product that leaves SMs idle is split along k: k must be deep enough to share out.

    With a bias in the epilogue (cuBLASLt) the smallest tile, 32 x 32, decides; without one the usual 64 x 64.
    A deep product with its left operand transposed (a weight gradient) is split whatever its size.
    """
    large = min(gemm.tiles(256, 128), gemm.tiles(128, 256))
    if gemm.fused_bias:
        small = gemm.tiles(32, 32)
        if gemm.k < 2 * _SIMT_SLICE_K and small <= target.sm_count:
            return True
        if small < 0.95 * target.sm_count:
            return small < 0.3 * target.sm_count or gemm.k > max(
                _LT_SHALLOW_K, _LT_SHALLOW_K_PER_TILE * small
            )
        return gemm.k >= 2 * _DEEP_K and (small <= target.sm_count or (gemm.k >= 4 * _DEEP_K and large <= 24))
    tiles = gemm.tiles(64, 64)
    if gemm.k >= _DEEP_K and (gemm.left_transposed or large <= target.sm_count // 3):
        return True
    untransposed = not (gemm.left_transposed or gemm.right_transposed)
    if untransposed and gemm.k > _SIMT_SLICE_K and tiles <= target.sm_count // 8:
        return tiles <= 5 or not 80 <= gemm.k < _SIMT_SPLIT_MIN_K - 16
    if tiles <= target.sm_count // (3 if gemm.left_transposed else 2):
        return gemm.k >= _SIMT_SPLIT_MIN_K
    return gemm.k >= _SIMT_SPLIT_BUSY_K and tiles <= _SIMT_BUSY * target.sm_count


def _adds_in_place(gemm: Gemm, tile: tuple[int, int], splits: int, target: Target) -> bool:
    """Parts of k added up tile by tile behind semaphores, not by a reduction: outputs whose partial sums would be
    large, small tiles in few parts, and with a bias in the epilogue long products of more than a few columns."""
    if gemm.fused_bias:
        return gemm.k >= 1024 and gemm.m * gemm.n >= 1 << 13
    if 4 * splits * gemm.m * gemm.n > _LARGEST_PARTIAL_SUMS:
        return True
    return gemm.tiles(64, 64) >= target.sm_count and tile[0] * tile[1] <= 64 * 64 and splits <= 3


def _splits_without_workspace(gemm: Gemm) -> bool:
    """``sgemm_largek``: the output is scaled by beta first, parts of k are added to it atomically, and the bias
    comes last: memset, scale, product, epilogue. Seen with a transposed right operand for little work, and where the
    output takes a dozen 64 x 64 tiles and more; the deepest of these are added up in place."""
    if not gemm.right_transposed or gemm.m <= 16:
        return False
    if gemm.m * gemm.n * gemm.k <= 1 << 21:
        return True
    tiles = gemm.tiles(64, 64)
    return gemm.m >= 64 and tiles >= 12 and (gemm.k < 4 * _DEEP_K or tiles <= 16)


def reread_bytes(gemm: Gemm, made: GemmPlan, itemsize: int, target: Target) -> tuple[int, int]:
    """Bytes of the left and of the right operand that are fetched again because they left the L2 meanwhile.

    One-tile-a-CTA kernels walk down the rows first (their grid is ``[row tiles, column tiles]``): a left operand
    larger than the L2 passes once for each column of tiles, or for as many as run at once. A 65536 x 768 float32 matrix
    times 768 x 3072 read 4,859 MB on an H200 where 24 x 201 MB = 4,832 MB; one of 16384 x 8192 times 8192 x 512, whose 128
    rows of tiles run two columns at a time, 1,096 MB where 2 x 537 MB = 1,074 MB. CUTLASS's kernels take eight columns
    side by side. Persistent kernels work on a near-square block of tiles at a time, so each round fetches the block's rows
    and columns: 25 rounds x 39 MB for 32768 x 4096 x 4096 in bfloat16, 967 MB where 1,164 MB were read. Batches are taken
    to fit the L2 one by one.
    """
    rows, columns = made.tile
    row_tiles, column_tiles = math.ceil(gemm.m / rows), math.ceil(gemm.n / columns)
    left, right = gemm.m * gemm.k * itemsize, gemm.k * gemm.n * itemsize
    if gemm.batch > 1 or made.waves * made.splits == 1 or made.family == "thin":
        return 0, 0
    if made.family != "warp_specialized":
        side_by_side = _columns_at_once(made, row_tiles, target)
        return round(_missed(left, target) * left * (math.ceil(column_tiles / side_by_side) - 1)), 0
    missed = _missed(left + right, target)
    high = min(row_tiles, max(1, math.ceil(math.sqrt(target.sm_count * columns / rows))))
    wide = min(column_tiles, math.ceil(target.sm_count / high))
    high = min(row_tiles, math.ceil(target.sm_count / wide))
    again_left = max(1.0, made.waves * high / row_tiles) - 1
    again_right = max(1.0, made.waves * wide / column_tiles) - 1
    return round(missed * left * again_left), round(missed * right * again_right)


def _columns_at_once(made: GemmPlan, row_tiles: int, target: Target) -> int:
    """Columns of tiles that pass over the left operand together."""
    if made.family == "tensor_op" or made.tile[0] * made.tile[1] >= 256 * 128:
        return _SWIZZLED_COLUMNS
    return max(1, _CTAS_A_SM * target.sm_count // row_tiles)


def _missed(working_set: int, target: Target) -> float:
    """The share of a working set, swept again and again, that misses the L2 on each sweep.

    What was touched longest ago goes first, which is what the sweep comes to next: none of it where it fits, all of it where it
    is a third more than that, and in between what lies in crowded sets. A left operand of 67 MB was read 12 times in 12
    sweeps on an H200.
    """
    ratio = working_set / (_L2_USABLE_SHARE * target.l2_bytes)
    return min(1.0, max(0.0, (ratio - 1) / _ALL_MISSED))
