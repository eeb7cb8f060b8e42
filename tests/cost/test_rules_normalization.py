"""Norms and softmax."""

import pytest

from optrace.cost.passes import passes_of
from optrace.cost.rules import work_of
from optrace.cost.rules.normalization import channels_last_blocks
from tests.cost.calls import T
from tests.cost.rows import check, rows

STATS = (T(64), T(64))
affine = (T(64), T(64), T(64), T(64))
image = T(2, 64, 8, 8)
n = 2 * 64 * 8 * 8
stripes = T(3136, 64)
many_short_rows = T(2**17, 64)


def layer_norm_backward(source, row, rows_, mask):
    statistics = T(rows_, 1)
    return (
        "aten.native_layer_norm_backward.default",
        source, T(*source.shape), [row], statistics, T(rows_, 1), T(row), T(row), mask,
    )  # fmt: skip


turned = T(4, 24, stride=(1, 4))

ROWS = [
    (("aten._softmax.default", T(4, 24), -1, False), T(4, 24), 1, 0, 0, 5 * 4 * 24),
    (("aten._softmax.default", T(4, 24, stride=(1, 4)), -1, False), T(4, 24), 1 + 1, 0, 0, 5 * 4 * 24),
    # gradient * output, then the kernel; log_softmax needs no product.
    (
        ("aten._softmax_backward_data.default", T(4, 24), T(4, 24), -1, "torch.float32"),
        T(4, 24), 1 + 1, 0, 0, 4 * 4 * 24,
    ),
    # Transposed: the product, its copy and the output's, the kernel.
    (
        ("aten._softmax_backward_data.default", turned, T(4, 24, stride=(1, 4)), -1, "torch.float32"),
        T(4, 24), 1 + 1 + 1 + 1, 0, 0, 4 * 4 * 24,
    ),
    (
        ("aten._log_softmax_backward_data.default", T(4, 24), T(4, 24), -1, "torch.float32"),
        T(4, 24), 1, 0, 0, 4 * 4 * 24,
    ),
    # softmax, scalar, equal, all, scalar, where.
    (("aten._safe_softmax.default", T(4, 24), -1), T(4, 24), 6, 0, 0, 8 * 4 * 24),
    (("aten.native_layer_norm.default", T(4, 24), [24], T(24), T(24), 1e-5), (T(4, 24), T(4, 1), T(4, 1)), 1, 0, 0, 7 * 96),
    # 25 is no multiple of 4: moments and normalization apart. Doubles too.
    (("aten.native_layer_norm.default", T(4, 25), [25], None, None, 1e-5), (T(4, 25), T(4, 1), T(4, 1)), 2, 0, 0, 7 * 100),
    (("aten.native_layer_norm.default", T(4, 24, stride=(1, 4)), [24], None, None, 1e-5), (T(4, 24), T(4, 1), T(4, 1)), 1 + 1, 0, 0, 7 * 96),
    (layer_norm_backward(T(1024, 64), 64, 1024, [True, True, True]), (T(1024, 64), T(64), T(64)), 1 + 1, 0, 0, 12 * 1024 * 64),
    # 131,072 rows of 64: partial sums of 32 rows in 4,096 blocks, then two sums over them, each shared by blocks.
    (layer_norm_backward(many_short_rows, 64, 2**17, [True, True, True]), (T(2**17, 64), T(64), T(64)), 1 + 1 + 2, 0, 2, 12 * 2**23),
    # Training: sums, running statistics, normalization.
    (("aten.native_batch_norm.default", image, *affine, True, 0.1, 1e-5), (image, *STATS), 3, 0, 0, 7 * n),
    # 3,136 rows of channels: 13 blocks share a channel, so a fill of semaphores comes first.
    (("aten.native_batch_norm.default", stripes, *affine, True, 0.1, 1e-5), (stripes, *STATS), 1 + 3, 0, 0, 7 * 3136 * 64),
    # Inference: the mean is copied, the variance inverted.
    (("aten.native_batch_norm.default", image, *affine, False, 0.1, 1e-5), (image, *STATS), 2, 1, 0, 4 * n),
    (("aten.cudnn_batch_norm.default", image, *affine, True, 0.1, 1e-5), (image, *STATS), 1, 0, 0, 7 * n),
    (("aten.cudnn_batch_norm_backward.default", image, T(2, 64, 8, 8), T(64), T(64), T(64), T(64), T(64), 1e-5, T(0)), (image, *STATS), 1, 0, 0, 12 * n),
    (
        ("aten.native_batch_norm_backward.default", T(2, 64, 8, 8), image, *affine, T(64), True, 1e-5, [True, True, True]),
        (T(2, 64, 8, 8), T(64), T(64)), 1, 0, 0, 12 * n,
    ),
    (
        ("aten.native_batch_norm_backward.default", T(3136, 64), stripes, *affine, T(64), True, 1e-5, [True, True, True]),
        (T(3136, 64), T(64), T(64)), 1 + 2, 0, 0, 12 * 3136 * 64,
    ),
    # Moments, scale and shift a channel, elements. One pixel an image needs no scale and shift.
    (("aten.native_group_norm.default", image, T(64), T(64), 2, 64, 64, 8, 1e-5), (T(2, 64, 8, 8), T(2, 8), T(2, 8)), 3, 0, 0, 7 * n),
    (("aten.native_group_norm.default", T(2, 64), T(64), T(64), 2, 64, 1, 8, 1e-5), (T(2, 64), T(2, 8), T(2, 8)), 2, 0, 0, 7 * 128),
    # Sums; scale, parameters, elements; weight and bias.
    (
        ("aten.native_group_norm_backward.default", T(2, 64, 8, 8), image, T(2, 8), T(2, 8), T(64), 2, 64, 64, 8, [True, True, True]),
        (T(2, 64, 8, 8), T(64), T(64)), 1 + 3 + 1, 0, 0, 12 * n,
    ),
]  # fmt: skip


@rows(ROWS)
def test_launches(row, maker, target):
    check(row, maker, target)


@pytest.mark.parametrize(
    ("rows_", "channels", "blocks"),
    [
        (784, 192, 1),  # 784 / (16 threads x 16) = 4 blocks: fewer than 8 do not cooperate
        (3136, 192, 13),  # 3136 / 256
        (204800, 48, 128),  # 800, but at most 128
        (16, 384, 1),
    ],
)
def test_blocks_that_share_a_channel(rows_, channels, blocks):
    assert channels_last_blocks(rows_, channels) == blocks


def test_batch_norm_reads_its_input_again(maker, target):
    node = maker("aten.native_batch_norm.default", image, *affine, True, 0.1, 1e-5, out=(image, *STATS))
    assert sum(access.nbytes for access in work_of(node, target).rereads) == n * 4


def test_a_transposed_softmax_gradient_has_three_temporaries(maker, target):
    call = ("aten._softmax_backward_data.default", turned, T(4, 24, stride=(1, 4)), -1, "torch.float32")
    assert work_of(maker(*call, out=T(4, 24)), target).scratch == (4 * 96,) * 3


def test_long_rows_of_softmax_leave_the_l2_between_passes(maker, target):
    # Two blocks of 1,024 threads a multiprocessor, 264 rows of 1.5 MB in flight: read three times.
    long = T(4096, 393216)
    work = work_of(maker("aten._softmax.default", long, 1, False, out=T(4096, 393216)), target)
    assert sum(access.nbytes for access in work.rereads) == 2 * 4096 * 393216 * 4
    short = work_of(maker("aten._softmax.default", T(4096, 2048), 1, False, out=T(4096, 2048)), target)
    assert short.rereads == ()


def test_long_rows_of_a_norm_leave_the_l2_before_their_second_pass(maker, target):
    # 16 blocks of 128 threads a multiprocessor: 2,112 rows of 16 KB twice are 69 MB of 50, of 4 KB 17 MB. A third stays.
    long, short = T(16384, 4096), T(16384, 1024)
    work = work_of(
        maker("aten.native_layer_norm.default", long, [4096], None, None, 1e-5, out=(T(16384, 4096),)), target
    )
    assert sum(access.nbytes for access in work.rereads) == round(2 / 3 * 16384 * 4096 * 4)
    work = work_of(
        maker("aten.native_layer_norm.default", short, [1024], None, None, 1e-5, out=(T(16384, 1024),)),
        target,
    )
    assert work.rereads == ()


def test_softmax_along_rows_reads_twice_more_in_passes_of_their_own(maker, target):
    # Blocks pass down the columns of 64 MiB three times: largest, sum, result.
    source = T(4096, 4096)
    work = work_of(maker("aten._softmax.default", source, 0, False, out=T(4096, 4096)), target)
    assert [sum(access.nbytes for access in one.reads) for one in passes_of(work)] == [4 * 4096 * 4096] * 3
