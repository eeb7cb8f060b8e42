"""Gathers, scatters, sorts and scans."""

import pytest

from optrace.cost.rules import work_of
from optrace.cost.rules.radix import bits_of, radix_sort, reduce, scan
from optrace.cost.rules.sorting import topk_launches
from tests.cost.calls import T
from tests.cost.rows import check, rows

x = T(4, 24)
index = T(4, 24, dtype="int64")
mask = T(4, 24, dtype="bool")


def ints(*shape, **kwargs):
    return T(*shape, dtype="int64", **kwargs)


# Count (one block), compact (2), coordinates (2 dimensions).
NONZERO = 1 + 2 + 1
# Largest and smallest index: reduce, compare, assert each.
CHECKS = 2 * 3

ROWS = [
    (("aten.index_select.default", x, 0, ints(2)), T(2, 24), 1, 0, 0, 0),
    (("aten.gather.default", x, 1, ints(4, 2)), T(4, 2), 1, 0, 0, 0),
    (("aten.index.Tensor", x, [ints(5)]), T(5, 24), 1, 0, 0, 0),
    (("aten.index.Tensor", x, [mask]), T(7), 1 + NONZERO, 1, 0, 0),
    (("aten.nonzero.default", x), ints(7, 2), NONZERO, 1, 0, 4 * 24),
    # 4,097 elements are more than a block adds up; one dimension has no coordinates to make.
    (("aten.nonzero.default", T(4097)), ints(7, 1), 2 + 2, 1, 0, 4097),
    (("aten.nonzero_static.default", x), ints(7, 2), 4 + 1, 0, 0, 4 * 24),
    (("aten.masked_select.default", x, mask), T(7), NONZERO + 1, 1, 0, 4 * 24),
    (("aten.masked_scatter.default", x, mask, T(96)), T(4, 24), 2 + 2, 1, 0, 4 * 24),
    (("aten.scatter.src", x, 1, index, T(4, 24)), T(4, 24), 1, 1, 0, 0),
    (("aten.scatter_add_.default", x, 1, index, T(4, 24)), x, 1, 0, 0, 4 * 24),
    # Neutral values first; ones, counts, scatter, equal, fill, divide.
    (
        ("aten.scatter_reduce_.two", x, 1, index, T(4, 24), "mean"), x, 1 + 6, 0, 0, 4 * 24,
    ),
    (("aten.index_add_.default", x, 0, ints(2), T(2, 24)), x, 1, 0, 0, 2 * 24),
    (("aten.index_fill_.int_Scalar", x, 0, ints(2), 1), x, 1, 0, 0, 0),
    (("aten.index_put_.default", x, [ints(2)], T(2, 24)), x, 1, 0, 0, 0),
    (("aten.index_put_.default", x, [mask], T(device="cpu")), x, 1, 0, 0, 0),
    # Clone; checks; wrap, scale, divide; number; sort in one block; add.
    (("aten.index_put.default", x, [ints(5)], T(5, 24), True), T(4, 24), CHECKS + 3 + 1 + 1 + 1, 1, 0, 5 * 24),
    # 10,000 indices into 300 rows (9 bits): counters and bins, histogram and its sum, two passes with a table each.
    (
        ("aten.index_put.default", T(300, 24), [ints(10000)], T(10000, 24), True), T(300, 24),
        CHECKS + 3 + 1 + (2 + 2) + 1, 1, 2 + 2, 10000 * 24,
    ),
    (("aten.embedding_dense_backward.default", T(8, 16), ints(8), 100, -1, False), T(100, 16), 2, 0, 0, 8 * 16),
    # 4,096 64-bit keys in 8 passes, and ten kernels that add up runs.
    (
        ("aten.embedding_dense_backward.default", T(4096, 16), ints(4096), 100, -1, False), T(100, 16),
        1 + (2 + 8) + 10, 0, 2 + 8, 4096 * 16,
    ),
    (
        ("aten._embedding_bag.default", T(100, 16), ints(8), ints(2)),
        (T(2, 16), ints(8), ints(2), ints(0)), 1, 0, 0, 8 * 16,
    ),
    (
        ("aten._embedding_bag_dense_backward.default", T(2, 16), ints(8), ints(8), ints(2), ints(0), 100, False, 0, None),
        T(100, 16), 1 + 1 + 10, 0, 0, 8 * 16,
    ),
    # The op that autograd calls does the same.
    (
        ("aten._embedding_bag_backward.default", T(2, 16), ints(8), ints(2), ints(8), ints(2), ints(0), 100, False, 0,
         False, None),
        T(100, 16), 1 + 1 + 10, 0, 0, 8 * 16,
    ),
    (("aten.cumsum.default", x, 1), T(4, 24), 1, 0, 0, 4 * 24),
    # Cast; one row is CUB's scan.
    (("aten.cumsum.default", T(96, dtype="bool"), 0), ints(96), 1 + 2, 0, 0, 96),
    (("aten.cummax.default", T(96), 0), (T(96), ints(96)), 1, 0, 0, 96),
    (("aten.sort.default", T(96)), (T(96), ints(96)), 1 + 1, 3, 0, 0),
    # Positions are spread over rows by a kernel.
    (("aten.sort.default", x), (T(4, 24), ints(4, 24)), 1 + 1 + 1, 2, 0, 0),
    # One long row: positions, 4 passes of 8 bits.
    (("aten.sort.default", T(5000)), (T(5000), ints(5000)), 1 + (2 + 4), 1, 2 + 4, 0),
    # Eight long rows: by value, then by row (3 bits, one pass), positions and values put in place.
    (("aten.sort.default", T(8, 5000)), (T(8, 5000), ints(8, 5000)), 2 + (2 + 4) + (2 + 1), 1, (2 + 4) + (2 + 1), 0),
    # 128 long rows: CUB's segments in passes of 6 bits.
    (("aten.sort.default", T(128, 5000)), (T(128, 5000), ints(128, 5000)), 1 + 6, 1, 0, 0),
    (("aten.topk.default", T(4, 24), 2), (T(4, 2), ints(4, 2)), 1 + 1, 0, 0, 0),
    (("aten.histc.default", x, 8, 0, 7), T(8), 2, 0, 0, 4 * 24),
    (("aten.histc.default", x, 8), T(8), 2 + 1, 2, 0, 4 * 24),
    (("aten.bincount.default", ints(96)), ints(10), 2 + 2, 2, 0, 96),
    # max, min, compared and joined (3); sum, compared; exponential, divide; argmax.
    (("aten.multinomial.default", T(24), 1), ints(1), 2 + 3 + 1 + 1 + 2 + 1, 2, 0, 6 * 24),
    (("aten.searchsorted.Tensor", T(24), T(5)), ints(5), 1, 0, 0, 5),
    # A fill, comparisons, any; copied into the result.
    (("aten.isin.Tensor_Tensor", T(24), T(5)), T(24, dtype="bool"), 1 + 1 + 1, 1, 0, 2 * 24 * 5),
    (("aten.isin.Tensor_Tensor", T(0), T(5)), T(0, dtype="bool"), 0, 0, 0, 0),
    # A source that is one row, shown twice, is added twice.
    (("aten.index_add_.default", x, 0, ints(2), T(2, 24, stride=(0, 1))), x, 1, 0, 0, 2 * 24),
    # Of a source larger than its index only as much is taken as there are indices.
    (("aten.scatter_add_.default", x, 1, ints(4, 2), T(4, 24)), x, 1, 0, 0, 4 * 2),
    # 100 rows meet 24 columns: 2,400 indices, more than one block sorts (13 bits: two passes). Both are wrapped and scaled,
    # added up, divided; numbered; and the values added in order.
    (
        ("aten.index_put.default", T(300, 24), [ints(100, 1), ints(1, 24)], T(100, 24), True), T(300, 24),
        2 * CHECKS + (2 * 2 + 1 + 1) + 1 + (2 + 2) + 1, 1, 2 + 2, 100 * 24,
    ),
    # One value for all that is indexed: expanded first by a kernel.
    (("aten.index_put.default", x, [ints(5)], T(24), True), T(4, 24), CHECKS + 3 + 1 + 1 + 1 + 1, 1, 0, 5 * 24),
]  # fmt: skip


@rows(ROWS)
def test_launches(row, maker, target):
    check(row, maker, target)


def test_a_large_membership_test_is_not_known(maker, target):
    # 10 * 24**0.145 is 15.85: fewer than 15 are compared each with all.
    few, many = (
        work_of(maker("aten.isin.Tensor_Tensor", T(24), T(n), out=T(24, dtype="bool")), target)
        for n in (14, 15)
    )
    assert few.launches == 4
    assert many.launches is None


def test_a_number_under_a_mask_of_rows_is_a_masked_fill(maker, target):
    rows_mask, number = T(4, dtype="bool"), T(device="cpu")
    filled = work_of(maker("aten.index_put_.default", x, [rows_mask], number, out=x), target)
    assert (filled.kernels, filled.memcpys, filled.host_wait) == (1, 0, False)
    # It reads what it does not change, to write it again.
    assert filled.tensor_bytes == 4 * 24 * 4 + 4 + 4 * 24 * 4
    # Beside another index the mask's positions are found first, for which the host waits.
    indexed = work_of(maker("aten.index_put_.default", x, [rows_mask, ints()], number, out=x), target)
    assert (indexed.kernels, indexed.memcpys, indexed.host_wait) == (1 + 2 + 1, 1, True)


LARGE = T(1000, 24)


@pytest.mark.parametrize(
    ("name", "args", "nbytes"),
    [
        # A row for each of two indices, whatever the value's shape.
        ("index_fill_.int_Scalar", (LARGE, 0, ints(2), 1.0), 2 * 24 * 4),
        ("index_fill_.int_Tensor", (LARGE, 0, ints(2), T()), 2 * 24 * 4),
        ("index_add_.default", (LARGE, 0, ints(2), T(2, 24, stride=(0, 1))), 2 * 24 * 4),
        ("index_copy_.default", (LARGE, 0, ints(), T(24)), 24 * 4),
        # An element an index.
        ("put_.default", (LARGE, ints(5), T(5)), 5 * 4),
        ("scatter_.src", (LARGE, 0, ints(2, 24), T(4, 24)), 2 * 24 * 4),
        # Of 1,000 rows three at random, hardly ever one twice; 5 x 2 elements; none.
        ("index_put_.default", (LARGE, [ints(3)], T(24)), 3 * 24 * 4),
        ("index_put_.default", (LARGE, [ints(3)], T(device="cpu")), 3 * 24 * 4),
        ("index_put_.default", (LARGE, [None, ints(1)], T(1000, 1)), 1000 * 4),
        ("index_put_.default", (LARGE, [ints(5, 1), ints(1, 2)], T(5, 2)), 5 * 2 * 4),
        ("index_put_.default", (LARGE, [ints(0)], T(0, 24)), 0),
    ],
)
def test_places_that_are_written(maker, target, name, args, nbytes):
    (written,) = work_of(maker(f"aten.{name}", *args, out=args[0]), target).writes
    assert written.nbytes == pytest.approx(nbytes, rel=0.03)


@pytest.mark.parametrize(
    ("name", "args"),
    [("aten._unique2.default", ()), ("aten.mode.default", ()), ("aten._fft_r2c.default", ([1], 0, True))],
)
def test_what_values_or_a_library_decide_is_not_known(maker, target, name, args):
    assert work_of(maker(name, x, *args, out=T(4, 24)), target).launches is None


def test_one_block_sorts_2304_pairs_of_8_bytes():
    # 256 threads, 19 * 4 // 8 = 9 items each.
    assert radix_sort(256 * 9, key_bytes=8, value_bytes=8).kernels == 1
    assert radix_sort(256 * 9 + 1, key_bytes=8, value_bytes=8).kernels == 2 + 64 // 8


def test_pieces_of_the_library():
    assert (bits_of(0), bits_of(1), bits_of(299)) == (1, 1, 9)
    assert (scan(96), scan(2**30 + 1)) == (2, 2 + 1 + 2)
    assert (reduce(256 * 16), reduce(256 * 16 + 1)) == (1, 2)


def test_topk_of_few_long_rows_takes_many_blocks_a_row():
    # A fill, three kernels a byte of a float, counts, two scans by key, a gather; then a sort of what was found.
    assert topk_launches(1, 20000, 5, 4, in_order=True).kernels == 1 + 3 * 4 + 1 + 4 + 1 + 1
    assert topk_launches(1, 19999, 5, 4, in_order=True).kernels == 1 + 1
