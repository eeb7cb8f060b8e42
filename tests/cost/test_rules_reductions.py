"""Reductions and losses: launches by Reduce.cuh's configuration, FLOPs by hand."""

import pytest

from optrace.cost.rules import work_of
from optrace.cost.rules.reduce_config import reduce_config, reduction_iteration, threads_per_sm
from tests.cost.calls import T
from tests.cost.rows import check, rows

x = T(4, 24)


def config(maker, target, tensor, dims, input_vector=4):
    source = maker("aten.relu.default", tensor, out=T()).inputs[0]
    (piece,) = reduction_iteration(source, dims, source.itemsize).pieces()
    found = reduce_config(piece, source, target, input_vector)
    return found.blocks, found.ctas_per_output, found.block_width, found.block_height


def test_rows_are_split_over_a_warp_and_blocks_hold_several(maker, target):
    # 768 / 4 (vector) = 192 lanes wanted: 32 by 512 / 32 = 16 rows; a thread adds 768 / 32 = 24 < 256, so
    # each row of threads keeps its own output: 1024 / 16 blocks.
    assert config(maker, target, T(1024, 768), (1,)) == (1024 // 16, 1, 32, 16)


def test_columns_take_four_outputs_a_thread(maker, target):
    # 128 threads for 4 outputs each: 32 by 4. 1024 / 4 = 256 values a thread, so blocks share an output: at
    # most 256 / 16 = 16. 2304 / (4 * 32) = 18 blocks side by side.
    assert config(maker, target, T(1024, 2304), (0,)) == (18, 16, 32, 4)


def test_an_odd_width_takes_one_output_a_thread(maker, target):
    # 4095 is odd: no output vector. 512 threads, 32 by 16; 4096 / 16 = 256 values a thread, but more blocks
    # (32 * 4095 / 32) than run at once (132 * 2048 / 512 = 528): not split.
    assert config(maker, target, T(32, 4096, 4095), (1,)) == (4095, 1, 32, 16)


def test_a_whole_tensor_fills_the_gpu(maker, target):
    # 2^20 values, 512 threads: 2048 a thread; 528 blocks run at once, 2048 / 16 = 128 are enough.
    assert config(maker, target, T(1 << 20), ()) == (1, 128, 512, 1)


@pytest.mark.parametrize(
    ("capability", "threads"), [((9, 0), 2048), ((8, 0), 2048), ((8, 9), 1536), ((7, 5), 1024)]
)
def test_threads_a_multiprocessor_holds(capability, threads):
    assert threads_per_sm(capability) == threads


ROWS = [
    (("aten.sum.default", x), T(), 1, 0, 0, 4 * 24),
    (("aten.sum.dim_IntList", T(1024, 2304), [0]), T(2304), 1, 0, 1, 1024 * 2304),
    # int32 is summed in int64: a cast first. bfloat16 to float32 is done on the way.
    (("aten.sum.default", T(4, 24, dtype="int32")), T(dtype="int64"), 1 + 1, 0, 0, 4 * 24),
    (("aten.mean.dim", T(4, 24, dtype="bfloat16"), [1]), T(4), 1, 0, 0, 4 * 24),
    # 2^31 floats span 8 GiB: halved until offsets fit 31 bits, four pieces of 2 GiB, each shared by blocks.
    (("aten.sum.default", T(2**15, 2**16)), T(), 4, 0, 4, 2**31),
    (("aten.linalg_vector_norm.default", x), T(), 1, 0, 0, 2 * 4 * 24),
    (("aten.amax.default", x, [1]), T(4), 1, 0, 0, 4 * 24),
    (("aten.max.dim", x, 1), (T(4), T(4, dtype="int64")), 1, 0, 0, 4 * 24),
    (("aten.argmax.default", x, 0), T(24, dtype="int64"), 1, 0, 0, 4 * 24),
    (("aten.any.default", x), T(dtype="bool"), 1, 0, 0, 4 * 24),
    (("aten.var.correction", x, [1]), T(4), 1, 0, 0, 4 * 4 * 24),
    # amax; abs, equal, masked_fill on 4 maxima; subtract, exp; sum; log, add on 4 results.
    (("aten.logsumexp.default", x, [1]), T(4), 1 + 3 + 2 + 1 + 2, 0, 0, 4 * 4 * 24 + 4 * 4),
    (("aten.dist.default", x, T(4, 24)), T(), 1 + 1, 0, 0, 3 * 4 * 24),
    (("aten.trace.default", T(8, 8)), T(), 1, 0, 0, 8),
    # Not equal, cast, sum.
    (("aten.count_nonzero.dim_IntList", x, [1]), T(4, dtype="int64"), 2 + 1, 0, 0, 2 * 4 * 24),
    (("aten.equal.default", x, T(4, 24)), True, 1 + 1, 1, 0, 2 * 4 * 24),
    # The host tells without looking at an element.
    (("aten.equal.default", x, T(2, 4, 24)), False, 0, 0, 0, 0),
    (("aten.equal.default", T(0), T(0)), True, 0, 0, 0, 0),
    (("aten.kthvalue.default", x, 3), (T(4), T(4, dtype="int64")), 1, 0, 0, 4 * 24),
    (("aten.median.default", x), T(), None, 0, 0, 4 * 24),
    # The losses and their mean; none: the losses only.
    (("aten.mse_loss.default", x, T(4, 24)), T(), 1 + 1, 0, 0, 3 * 4 * 24),
    (("aten.mse_loss.default", x, T(4, 24), 0), T(4, 24), 1, 0, 0, 3 * 4 * 24),
    (("aten.soft_margin_loss.default", x, T(4, 24)), T(), 5 + 1, 0, 0, 6 * 4 * 24),
    # The mean is copied into the result.
    (("aten.binary_cross_entropy.default", x, T(4, 24)), T(), 1 + 1, 1, 0, 5 * 4 * 24),
    (("aten.binary_cross_entropy_backward.default", T(), x, T(4, 24)), T(4, 24), 1 + 1, 0, 0, (4 + 2) * 4 * 24),
    (("aten.binary_cross_entropy_with_logits.default", x, T(4, 24)), T(), 4 + 1, 0, 0, 5 * 4 * 24),
    (
        ("aten.nll_loss_forward.default", T(32, 10), T(32, dtype="int64"), None, 1, -100),
        (T(), T()), 1, 0, 0, 32,
    ),
    (
        ("aten.nll_loss2d_forward.default", T(2, 10, 4, 4), T(2, 4, 4, dtype="int64"), None, 1, -100),
        (T(), T()), 2 + 1 + 1, 0, 0, 2 * 4 * 4,
    ),
    (
        (
            "aten.nll_loss_backward.default", T(), T(32, 10), T(32, dtype="int64"), None, 1, -100, T(),
        ),
        T(32, 10), 1 + 1, 0, 0, 32,
    ),
]  # fmt: skip


@rows(ROWS)
def test_launches(row, maker, target):
    check(row, maker, target)


def test_log_probabilities_are_read_one_a_target(maker, target):
    node = maker(
        "aten.nll_loss_forward.default", T(32, 10), T(32, dtype="int64"), None, 1, -100, out=(T(), T())
    )
    assert sum(access.nbytes for access in work_of(node, target).reads) == 32 * 4 + 32 * 8
