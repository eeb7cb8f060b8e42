"""Matrix products: what PyTorch and cuBLAS launch for them, their FLOPs and what they read again."""

import math

import pytest

from optrace.cost.rules import work_of
from optrace.cost.rules.gemm import Gemm, _missed, plan, reread_bytes
from optrace.cost.work import Work
from tests.cost.calls import T

HALF = "bfloat16"


def launches(work: Work) -> tuple[int | None, int, int]:
    return work.kernels, work.memcpys, work.memsets


@pytest.mark.parametrize(
    ("gemm", "splits"),
    [
        # The products of a GRU cell of 8 x 128, forward and backward, and a squeeze of 1,000 channels to 160, as their
        # grids show on an H200: three tiles of 32 x 128 take 132 shares of k each, one or two 2 x 132.
        (Gemm(8, 384, 128, "float32", right_transposed=True), 132),
        (Gemm(8, 128, 384, "float32"), 264),
        (Gemm(8, 160, 1000, "float32"), 264),
    ],
)
def test_a_few_rows_share_k_out_over_all_sms(target, gemm, splits):
    made = plan(gemm, target)
    assert (made.tile, made.splits, made.kernels, made.memsets) == ((32, 128), splits, 1, 1)


@pytest.mark.parametrize(
    "gemm",
    [
        # More rows, more tiles, a transposed left operand, a bias: no H200's grid has as many shares.
        Gemm(20, 384, 128, "float32", right_transposed=True),
        Gemm(8, 2048, 1000, "float32"),
        Gemm(8, 512, 256, "float32", left_transposed=True),
        Gemm(8, 256, 1280, "float32", right_transposed=True, fused_bias=True),
    ],
)
def test_others_do_not(target, gemm):
    assert plan(gemm, target).splits < 132


@pytest.mark.parametrize(
    ("m", "n", "k", "tiles", "memsets"),
    [
        # 132 SMs. 256 x 128 tiles: 4 x 32 = 128, one a CTA.
        (4096, 1024, 1024, 128, 0),
        # Two tiles a CTA at most, no counter: 4 x 64 = 256 <= 2 x 132.
        (8192, 1024, 1024, 256, 0),
        # 12 x 32 = 384 > 264: drawn from a counter that a memset zeroes.
        (4096, 3072, 768, 384, 1),
    ],
)
def test_persistent_kernels_draw_tiles_beyond_two_a_cta(target, m, n, k, tiles, memsets):
    made = plan(Gemm(m, n, k, HALF, right_transposed=True), target)
    assert (made.family, made.memsets, made.kernels) == ("warp_specialized", memsets, 1)
    assert made.tiles > 2 * 132 if memsets else made.tiles <= 2 * 132
    assert Gemm(m, n, k, HALF).tiles(128, 256) == tiles


@pytest.mark.parametrize(
    ("gemm", "kernels", "memsets"),
    [
        # 18 tiles of 64 x 64 (3 x 6) and k 3136 >= 18 x 96: split along k, partial sums reduced.
        (Gemm(192, 384, 3136, HALF, left_transposed=True), 2, 0),
        # 45 tiles (15 x 3) would want k >= 4320.
        (Gemm(960, 192, 3136, HALF, left_transposed=True), 1, 0),
        # Rows of 50257 elements are not 16-byte aligned: no Hopper kernel; k is deep, semaphores are zeroed.
        (Gemm(1024, 768, 50257, HALF, aligned=False), 1, 1),
        (Gemm(1024, 50257, 768, HALF, aligned=False), 1, 0),
        # 32 x 4 = 128 tiles of 128 x 128 <= 132 SMs and k 4097 >= 4096: two parts, 4 x 2 x 4095 x 512 B = 16.8 MB, reduced.
        (Gemm(4095, 512, 4097, HALF, aligned=False), 2, 0),
        # A bias is added in place, behind a memset; 8 x 16 = 128 tiles of 64 x 64 are more than 132 / 4 and k 257 < 1536.
        (Gemm(4095, 256, 4097, HALF, aligned=False, fused_bias=True), 1, 1),
        (Gemm(1000, 512, 257, HALF, aligned=False), 1, 0),
        # 2 x 8 = 16 untransposed tiles of 64 x 64 are at most 132 / 8: split at any depth over 8.
        (Gemm(127, 512, 33, HALF, aligned=False), 2, 0),
        (Gemm(127, 512, 33, HALF, aligned=False, fused_bias=True), 1, 0),
        # float32: 64 tiles of 64 x 64 (16 x 4) fill less than half the 132 SMs, k 256 >= 256.
        (Gemm(1000, 200, 256, "float32"), 2, 0),
        (Gemm(1000, 200, 192, "float32"), 1, 0),
        # 16 x 9 = 144 tiles are at most 1.125 x 132 = 148.5, and k 384 >= 320.
        (Gemm(1000, 520, 384, "float32"), 1, 1),
        # 16 x 11 = 176 are more: rounds decide. 4 x 11 = 44 tiles of 256 x 64 leave two thirds of the SMs idle for
        # 1.1 x 16384 x (384 + 16) = 7.2 M; three parts fill them: 1.1 x 16384 x (128 + 16) + 10,000 + 0.4 x 3 x 650,000 = 3.4 M.
        (Gemm(1000, 650, 384, "float32"), 2, 0),
        # 8 x 16 = 128 tiles of 128 x 128 are one full round.
        (Gemm(1000, 2048, 672, "float32"), 1, 0),
        # A bias in the epilogue: 32 x 32 tiles decide. 2 x 16 = 32 < 0.3 x 132 are split; 16 x 16 = 256 are enough; so are
        # 8 x 8 = 64 for k 256 <= 400. Little work (64 x 512 x 64 = 2^21) is scaled first and its bias comes last.
        (Gemm(64, 512, 64, "float32", right_transposed=True, fused_bias=True), 3, 1),
        (Gemm(64, 512, 65, "float32", right_transposed=True, fused_bias=True), 2, 0),
        (Gemm(256, 256, 256, "float32", right_transposed=True, fused_bias=True), 1, 0),
        (Gemm(256, 256, 480, "float32", right_transposed=True, fused_bias=True), 3, 1),
        # 2 x 48 = 96 tiles want a depth of more than 96 x 6 = 576 (an H200).
        (Gemm(64, 1536, 512, "float32", right_transposed=True, fused_bias=True), 1, 0),
        (Gemm(256, 384, 1536, "float32", right_transposed=True, fused_bias=True), 3, 1),
        # 16 x 8 = 128 tiles of 32 x 32 over less than two slices of 8 (an H200).
        (Gemm(512, 256, 13, "float32", right_transposed=True, fused_bias=True, aligned=False), 3, 1),
        # A weight gradient of 8 x 8 = 64 tiles of 64 x 64 is left whole, one of 6 x 6 = 36 <= 132 / 3 is split (an H200).
        (Gemm(512, 512, 256, "float32", left_transposed=True), 1, 0),
        (Gemm(384, 384, 256, "float32", left_transposed=True), 2, 0),
        (Gemm(512, 512, 64, "float32", right_transposed=True, fused_bias=True), 1, 0),
        # 12 tiles of 64 x 64: scaled, added to atomically, bias last, one memset.
        (Gemm(64, 768, 3072, "float32", right_transposed=True, fused_bias=True), 3, 1),
        # Few rows: thin kernels walk all of k. 1000 / 8 = 125 CTAs >= 0.9 x 132.
        (Gemm(8, 1000, 1280, "float32", right_transposed=True, fused_bias=True), 1, 0),
        (Gemm(1, 1000, 1280, "float32", right_transposed=True, fused_bias=True), 1, 0),
        # A dot product of a million terms for each row: the dot kernel and its second stage.
        (Gemm(2048, 1, 1 << 20, "float32"), 2, 0),
        # Batches give each SM something to do.
        (Gemm(64, 64, 4096, "float32", batch=128), 1, 0),
    ],
)
def test_split_k(target, gemm, kernels, memsets):
    made = plan(gemm, target)
    assert (made.kernels, made.memsets) == (kernels, memsets)


def test_partial_sums_are_written_and_read_back(maker, target):
    work = work_of(
        maker(
            "aten.mm.default",
            T(192, 3136, dtype=HALF),
            T(3136, 384, dtype=HALF),
            out=T(192, 384, dtype=HALF),
        ),
        target,
    )
    made = plan(Gemm(192, 384, 3136, HALF), target)
    assert work.scratch == (made.splits * 192 * 384 * 4,)


class TestRereads:
    def test_a_left_operand_beyond_the_l2_passes_once_a_column_of_tiles(self, target):
        gemm = Gemm(65536, 3072, 768, "float32", right_transposed=True, fused_bias=True)
        left, right = reread_bytes(gemm, plan(gemm, target), 4, target)
        # 3072 / 128 = 24 columns of tiles: 23 more passes over 201 MB, of which a cache of 0.8 x 50 MB keeps nothing.
        assert left == pytest.approx(23 * 65536 * 768 * 4, rel=0.01)
        assert right == 0

    def test_what_fits_is_read_once(self, target):
        gemm = Gemm(4096, 4096, 512, "float32", right_transposed=True)
        assert reread_bytes(gemm, plan(gemm, target), 4, target) == (0, 0)

    def test_persistent_kernels_fetch_a_block_of_tiles_each_round(self, target):
        gemm = Gemm(32768, 4096, 4096, HALF)
        made = plan(gemm, target)
        left, right = reread_bytes(gemm, made, 2, target)
        # 132 SMs hold a block of 8 x 17 tiles of 320 x 128: 4,736 rows and columns of 8 KB a round.
        assert made.tile == (320, 128)
        high = math.ceil(math.sqrt(132 * 128 / 320))
        wide = math.ceil(132 / high)
        fetched = made.waves * (high * 320 + wide * 128) * 4096 * 2
        assert left + right + (32768 + 4096) * 4096 * 2 == pytest.approx(fetched, rel=0.02)

    def test_they_are_reads_of_the_operand(self, maker, target):
        a, b = T(65536, 768), T(768, 3072, stride=(1, 768))
        node = maker("aten.addmm.default", T(3072), a, b, out=T(65536, 3072))
        (again,) = work_of(node, target).rereads
        assert again.tensor == node.inputs[1]


class TestAddmm:
    def test_a_bias_vector_rides_in_the_epilogue(self, maker, target):
        weight = T(512, 512, stride=(1, 512))
        work = work_of(
            maker("aten.addmm.default", T(512), T(512, 512), weight, out=T(512, 512)),
            target,
        )
        assert launches(work) == (1, 0, 0)

    def test_a_matrix_is_copied_into_the_output_first(self, maker, target):
        x = T(512, 512)
        work = work_of(maker("aten.addmm.default", T(512, 512), x, x, out=T(512, 512)), target)
        assert launches(work) == (1 + 1, 1, 0)  # a copy, then split-K: 64 tiles of 64 x 64 and k 512

    def test_a_vector_that_repeats_is_expanded_by_a_kernel(self, maker, target):
        # A single column: cuBLASLt refuses, so [1] is expanded to [2048, 1], then gemv.
        work = work_of(
            maker("aten.addmm.default", T(1), T(2048, 256), T(256, 1, stride=(1, 256)), out=T(2048, 1)),
            target,
        )
        assert launches(work) == (1 + 1, 0, 0)

    def test_in_place_and_beta_zero_copy_nothing(self, maker, target):
        out, x = T(2048, 2048), T(2048, 2048)
        in_place = work_of(maker("aten.addmm_.default", out, x, x, out=out), target)
        ignored = work_of(maker("aten.addmm.default", T(2048, 2048), x, x, out=T(2048, 2048), beta=0), target)
        assert in_place.memcpys == ignored.memcpys == 0

    def test_baddbmm(self, maker, target):
        """The addend is copied into the output, then added by the product's beta: 2 x (3x4 @ 4x5) + 2x3x5.

        ``matmul_flops`` 2 x 2 x 3 x 4 x 5 = 240; ``flops`` with the 30 additions."""
        work = work_of(
            maker("aten.baddbmm.default", T(2, 3, 5), T(2, 3, 4), T(2, 4, 5), out=T(2, 3, 5)), target
        )
        assert launches(work) == (1, 1, 0)
        assert (work.matmul_flops, work.flops) == (240, 240 + 30)


def test_operands_that_cublas_cannot_walk_are_copied(maker, target):
    every_other = T(2048, 2048, stride=(8192, 2))
    work = work_of(maker("aten.mm.default", every_other, T(2048, 2048), out=T(2048, 2048)), target)
    assert launches(work) == (1 + 1, 0, 0)
    assert work.scratch == (2048 * 2048 * 4,)


def test_nothing_to_sum_up_is_a_fill(maker, target):
    work = work_of(maker("aten.mm.default", T(8, 0), T(0, 4), out=T(8, 4)), target)
    assert (launches(work), work.matmul_flops) == ((1, 0, 0), 0)


@pytest.mark.parametrize(
    ("call", "out", "matmul_flops", "flops"),
    [
        (("aten.mv.default", T(8, 4), T(4)), T(8), 2 * 8 * 4, 2 * 8 * 4),
        (("aten.addmv.default", T(8), T(8, 4), T(4)), T(8), 2 * 8 * 4, 2 * 8 * 4 + 8),
        (("aten.dot.default", T(7), T(7)), T(), 2 * 7, 2 * 7),
        # Each of 16 rows meets one of 4 groups' [32, 8] matrices.
        (
            (
                "aten._grouped_mm.default",
                T(16, 32, dtype=HALF),
                T(4, 32, 8, dtype=HALF),
                T(4, dtype="int32"),
            ),
            T(16, 8, dtype=HALF),
            2 * 16 * 32 * 8,
            2 * 16 * 32 * 8,
        ),
        # Two ragged sides share k = 16: a [32, 8] gradient a group, 16 rows in all.
        (
            (
                "aten._grouped_mm.default",
                T(32, 16, dtype=HALF),
                T(16, 8, dtype=HALF),
                T(4, dtype="int32"),
            ),
            T(4, 32, 8, dtype=HALF),
            2 * 32 * 16 * 8,
            2 * 32 * 16 * 8,
        ),
        # Subtract, power, add: 3 a pair and coordinate, no matmul.
        (("aten._cdist_forward.default", T(5, 3), T(7, 3), 2.0, None), T(5, 7), 0, 3 * 5 * 7 * 3),
        (
            (
                "aten._scaled_mm.default",
                T(32, 64, dtype="float8_e4m3fn"),
                T(64, 16, dtype="float8_e4m3fn", stride=(1, 64)),
                T(),
                T(),
            ),
            T(32, 16, dtype=HALF),
            2 * 32 * 64 * 16,
            2 * 32 * 64 * 16,
        ),
    ],
)
def test_flops(maker, target, call, out, matmul_flops, flops):
    work = work_of(maker(*call, out=out), target)
    assert (work.matmul_flops, work.flops) == (matmul_flops, flops)


def test_mlp_of_784_512_512_10(maker, target):
    """``matmul_flops`` of three linear layers on one row: 668,672 multiply-adds are 1,337,344 FLOPs."""
    layers = [(784, 512), (512, 512), (512, 10)]
    total = sum(
        work_of(
            maker("aten.addmm.default", T(n), T(1, k), T(k, n, stride=(1, k)), out=T(1, n)), target
        ).matmul_flops
        for k, n in layers
    )
    assert total == 2 * (784 * 512 + 512 * 512 + 512 * 10) == 1_337_344


def test_grouped_products_lay_out_their_groups_first(maker, target):
    x, w, ends = T(16, 32, dtype=HALF), T(4, 32, 8, dtype=HALF), T(4, dtype="int32")
    node = maker("aten._grouped_mm.default", x, w, ends, out=T(16, 8, dtype=HALF))
    assert launches(work_of(node, target)) == (2, 0, 0)


@pytest.mark.parametrize(
    ("gemm", "launches"),
    [
        # A weight gradient, deep and with its left operand transposed, is split though 256 tiles fill the SMs.
        (Gemm(2048, 4096, 8192, "float32", left_transposed=True), 2),
        (Gemm(2048, 4096, 8192, "float32", right_transposed=True), 1),
        # Nothing transposed and at most 132 / 8 = 16 tiles: split down to slices of 8.
        (Gemm(64, 512, 10, "float32"), 2),
        (Gemm(64, 512, 8, "float32"), 1),
        # 65,535 x 16 = 1,048,560 rows a launch; the last 16 rows are a product of their own, and split.
        (Gemm(1_048_576, 768, 256, "float32"), 1 + 2),
    ],
)
def test_shapes_of_gradients_and_of_many_rows(target, gemm, launches):
    made = plan(gemm, target)
    assert made.kernels + made.memsets == launches


def test_large_partial_sums_are_added_in_place(target):
    # 64 x 32 tiles of 64 x 64 are more than 132: semaphores are zeroed, nothing is reduced.
    made = plan(Gemm(2048, 4096, 8192, "float32", left_transposed=True), target)
    assert (made.kernels, made.memsets, made.workspace_elements) == (1, 1, 0)
    # 16 x 9 = 144 tiles of 64 x 64 in two parts: one of them goes through the workspace.
    made = plan(Gemm(1000, 520, 384, "float32"), target)
    assert (made.kernels, made.memsets, made.workspace_elements) == (1, 1, 1000 * 520)
    # 47 x 3 = 141 of 64 x 256 in four, 4 x 4 x 3000 x 768 = 36.9 MB of them: the first three go through one place.
    made = plan(Gemm(3000, 768, 1024, "float32", right_transposed=True), target)
    assert (made.tile, made.splits, made.workspace_elements) == ((64, 256), 4, 3000 * 768)


@pytest.mark.parametrize(
    ("m", "n", "tile"),
    [
        # 24 x 24 = 576 tiles of 64 x 64 are 5 rounds of 132: 5 x 4096 / 0.96 < 2 x 16384 / 1.2, of 12 x 12 of 128 x 128.
        (1500, 1536, (64, 64)),
        # 64 x 4 = 256 of 128 x 128: 2 x 16384 / 1.2 < 8 x 4096 / 0.96, of 128 x 8 of 64 x 64.
        (8192, 512, (128, 128)),
        # 4 x 8 = 32 of 64 x 64 leave SMs idle, one round of 1024 / 0.55 does not.
        (256, 512, (32, 32)),
    ],
)
def test_float32_products_take_the_tile_that_ends_soonest(target, m, n, tile):
    assert plan(Gemm(m, n, 128, "float32", right_transposed=True, fused_bias=True), target).tile == tile


@pytest.mark.parametrize(("working_set", "missed"), [(40_000_000, 0.0), (46_666_667, 0.5), (67_108_864, 1.0)])
def test_what_a_sweep_finds_of_the_one_before(target, working_set, missed):
    """0.8 x 50 MB fit; of half of a third more than that half has left, of more all."""
    assert _missed(working_set, target) == pytest.approx(missed)
