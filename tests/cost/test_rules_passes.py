"""Passes of calls whose kernels go over their data several times: bytes read and written, as if nothing were cached."""

import math

import pytest

from optrace.cost.passes import passes_of
from optrace.cost.rules import work_of
from tests.cost.calls import TARGET, T


def ints(*shape):
    return T(*shape, dtype="int64")


def moved(work):
    """(bytes read, bytes written) over all passes; of these by the copy engine."""

    def size(operand):
        return work.scratch[operand] if isinstance(operand, int) else operand.nbytes

    totals = [0, 0, 0, 0]
    for one in passes_of(work):
        counts = (one.times * sum(map(size, one.reads)), one.times * sum(map(size, one.writes)))
        for place in (0, 2) if one.is_copy else (0,):
            totals[place] += counts[0]
            totals[place + 1] += counts[1]
    return tuple(totals)


SHORT, LONG = 4 * 24, 128 * 5000
#: 8 images of 64 x 56 x 56 floats to as many, weights of 64 x 64 x 3 x 3; 4 of 4 x 8 x 8, a pixel a window.
IMAGES, KERNEL, SMALL, PIXEL = 4 * 8 * 64 * 56 * 56, 4 * 64 * 64 * 9, 4 * 4 * 4 * 8 * 8, 4 * 4 * 4
STEPS = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
PLAIN = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
TABLE = T(100, 16)
DRAWN = round(4 * 100 * 16 * (1 - math.exp(-8 / 100)))

ROWS = [
    # Data and weights to channels last; the product, which writes NCHW itself; then the bias, added to the result in place.
    (
        ("aten.convolution.default", T(8, 64, 56, 56), T(64, 64, 3, 3), T(64), *STEPS), T(8, 64, 56, 56),
        2 * (IMAGES + KERNEL) + IMAGES + 4 * 64, IMAGES + KERNEL + IMAGES + IMAGES, 0, 0,
    ),
    # Two products over the pixels where they lie: the gradient is read with the weights and with the data, and once more for
    # the bias; the weights' gradient is the sum of one an image.
    (
        ("aten.convolution_backward.default", T(4, 4, 8, 8), T(4, 4, 8, 8), T(4, 4, 1, 1), None, *PLAIN, [True, True, True]),
        (T(4, 4, 8, 8), T(4, 4, 1, 1), T(4)),
        3 * SMALL + PIXEL + SMALL + 4 * PIXEL, SMALL + 4 * PIXEL + PIXEL + 4 * 4, 0, 0,
    ),
    # Depthwise, by PyTorch's own kernels: the gradient is read twice.
    (
        ("aten.convolution_backward.default", T(4, 4, 8, 8), T(4, 4, 8, 8), T(4, 1, 1, 1), None, *PLAIN[:-1], 4, [True, True, False]),
        (T(4, 4, 8, 8), T(4, 1, 1, 1), None),
        3 * SMALL + 4 * 4, SMALL + 4 * 4, 0, 0,
    ),
    # Zeros, then the gradients of the picked pixels over them; resampling adds to the zeros.
    (
        ("aten.max_pool2d_with_indices_backward.default", T(1, 4, 4, 4), T(1, 4, 8, 8), [2, 2], [2, 2], [0, 0], [1, 1], False, ints(1, 4, 4, 4)),
        T(1, 4, 8, 8),
        (4 + 8) * 64, 2 * 4 * 256, 0, 0,
    ),
    (
        ("aten.upsample_bilinear2d_backward.default", T(1, 4, 8, 8), [8, 8], [1, 4, 4, 4], False), T(1, 4, 4, 4),
        4 * 256 + 4 * 64, 2 * 4 * 64, 0, 0,
    ),
    # A CTA a channel passes twice over data and gradient: 64 of 6.4 MB at once, twice and with copies, fill more than the
    # L2; 64 of 50 KB do not.
    (
        ("aten.cudnn_batch_norm_backward.default", T(32, 64, 224, 224), T(32, 64, 224, 224), T(64), None, None, T(64), T(64), 1e-5, T(0, dtype="uint8")),
        (T(32, 64, 224, 224), T(64), T(64)),
        2 * 2 * 4 * 32 * 64 * 224 * 224 + 3 * 4 * 64, 4 * 32 * 64 * 224 * 224 + 2 * 4 * 64, 0, 0,
    ),
    (
        ("aten.cudnn_batch_norm_backward.default", T(4, 64, 56, 56), T(4, 64, 56, 56), T(64), None, None, T(64), T(64), 1e-5, T(0, dtype="uint8")),
        (T(4, 64, 56, 56), T(64), T(64)),
        2 * 4 * 4 * 64 * 56 * 56 + 3 * 4 * 64, 4 * 4 * 64 * 56 * 56 + 2 * 4 * 64, 0, 0,
    ),
    # Values copied twice, positions filled in, both sorted in place.
    (
        ("aten.sort.default", T(4, 24)), (T(4, 24), ints(4, 24)),
        2 * 4 * SHORT + 12 * SHORT, 2 * 4 * SHORT + 8 * SHORT + 12 * SHORT, 2 * 4 * SHORT, 2 * 4 * SHORT,
    ),
    # Rows that one block cannot sort: keys and positions once a pass over 6 bits.
    (
        ("aten.sort.default", T(128, 5000)), (T(128, 5000), ints(128, 5000)),
        4 * LONG + 6 * 12 * LONG, 4 * LONG + 8 * LONG + 6 * 12 * LONG, 4 * LONG, 4 * LONG,
    ),
    # One row of 5,000: passes over 8 bits.
    (
        ("aten.argsort.default", T(5000)), ints(5000),
        4 * 5000 + 4 * 12 * 5000, 4 * 5000 + 8 * 5000 + 4 * 12 * 5000, 4 * 5000, 4 * 5000,
    ),
    # A row in one block is read once; split over blocks, once for each of 4 digits and once to gather. 20 blocks a row of
    # 4 x 256 elements count 256 digits each, in 2 bytes.
    (("aten.topk.default", T(4, 24), 2), (T(4, 2), ints(4, 2)), 4 * SHORT, 12 * 8, 0, 0),
    (("aten.topk.default", T(4, 20000), 2), (T(4, 2), ints(4, 2)),
     5 * 4 * 80000 + 4 * 4 * 20 * 512, 12 * 8 + 4 * 4 * 20 * 512, 0, 0),
    # Cloned by the copy engine; then the clone and the mask, and the clone again.
    (
        ("aten.masked_fill.Scalar", T(4, 24), T(4, 24, dtype="bool"), 0.0), T(4, 24),
        4 * SHORT + (4 + 1) * SHORT, 2 * 4 * SHORT, 4 * SHORT, 4 * SHORT,
    ),
    # Cloned; then index, values, and what they are added to.
    (
        ("aten.scatter_add.default", T(4, 24), 1, ints(4, 24), T(4, 24)), T(4, 24),
        4 * SHORT + (8 + 4 + 4) * SHORT, 2 * 4 * SHORT, 4 * SHORT, 4 * SHORT,
    ),
    # In place only the values move.
    (
        ("aten.scatter_.src", T(4, 24), 1, ints(4, 8), T(4, 8)), T(4, 24),
        (8 + 4) * 32, 4 * 32, 0, 0,
    ),
    # A table of 100 rows is cleared; 8 rows drawn of them are 100 x (1 - exp(-8 / 100)) = 7.69 different ones, which are
    # read, added to and written.
    (
        ("aten.embedding_dense_backward.default", T(8, 16), ints(8), 100, -1, False), TABLE,
        4 * 8 * 16 + 8 * 8 + DRAWN, 4 * 100 * 16 + DRAWN, 0, 0,
    ),
    # Zeros, then the gradient into its rows.
    (
        ("aten.slice_backward.default", T(2, 16), [100, 16], 0, 3, 5, 1), TABLE,
        4 * 2 * 16, 4 * 100 * 16 + 4 * 2 * 16, 4 * 2 * 16, 4 * 2 * 16,
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[f"{number}-{row[0][0]}" for number, row in enumerate(ROWS)])
def test_bytes_of_all_passes(maker, row):
    call, out, *expected = row
    assert moved(work_of(maker(*call, out=out), TARGET)) == tuple(expected)


def test_an_element_comes_with_its_sector(maker):
    """Two of 96 floats a row: 64 bytes each, in order along the row; from other rows in no order."""
    along = work_of(maker("aten.gather.default", T(4, 96), 1, ints(4, 2), out=T(4, 2)), TARGET)
    across = work_of(maker("aten.gather.default", T(4, 24), 0, ints(2, 24), out=T(2, 24)), TARGET)
    assert [(a.nbytes, a.scattered) for a in along.reads] == [(8 * 64, 0), (8 * 8, 0)]
    assert [(a.nbytes, a.scattered) for a in across.reads] == [(4 * 24 * 4, 48), (8 * 48, 0)]


def test_elements_written_across_rows_are_parts_of_sectors_that_are_read(maker):
    target, values = T(4, 24), T(4, 24)
    work = work_of(maker("aten.scatter_.src", target, 0, ints(4, 24), values, out=target), TARGET)
    assert [(a.nbytes, a.scattered) for a in work.reads] == [(4 * 96, 96), (8 * 96, 0), (4 * 96, 0)]
    assert [(a.nbytes, a.scattered) for a in work.writes] == [(4 * 96, 96)]


def test_a_row_that_is_picked_again_is_found_where_what_comes_between_fits(maker):
    """10,000 rows of 1,024 floats, 10,000 x 4 KB between two picks of one: 41 MB of 50 fit. 20,000 picks do not."""
    few, many = (
        work_of(maker("aten.index_select.default", T(30000, 1024), 0, ints(n), out=T(n, 1024)), TARGET)
        for n in (10000, 20000)
    )
    assert few.reads[0].nbytes == round(30000 * 4096 * (1 - math.exp(-1 / 3)))
    assert many.reads[0].nbytes == 20000 * 4096


def test_a_table_of_integers_is_not_taken_for_its_indices(maker):
    """Two picks of 30,000: what lies between two of one is 8 KB, so each distinct row is read once."""
    work = work_of(
        maker("aten.index_select.default", ints(30000, 1024), 0, ints(2), out=ints(2, 1024)), TARGET
    )
    assert work.reads[0].nbytes == round(30000 * 8192 * (1 - math.exp(-2 / 30000)))


def test_adding_across_rows_is_scattered(maker):
    target, values = T(4, 24), T(4, 24)
    across = work_of(maker("aten.scatter_add_.default", target, 0, ints(4, 24), values, out=target), TARGET)
    along = work_of(maker("aten.scatter_add_.default", target, 1, ints(4, 24), values, out=target), TARGET)
    assert across.writes[0].scattered == 96
    assert along.writes[0].scattered == 0
