"""Copies, casts, fills, cat and padding."""

import pytest

from optrace.cost.rules import work_of
from tests.cost.calls import T
from tests.cost.rows import check, rows

x = T(4, 24)
columns = T(4, 24, stride=(1, 4))
nhwc = T(2, 8, 4, 4, stride=(128, 1, 32, 8))

ROWS = [
    # One run of bytes to another, whatever its order: a memcpy.
    (("aten.clone.default", nhwc), T(2, 8, 4, 4, stride=(128, 1, 32, 8)), 0, 1, 0, 0),
    (("aten.clone.default", columns), T(4, 24), 1, 0, 0, 0),
    # Gathered into one run on the device, then across the bus.
    (("aten._to_copy.default", T(4, 12, stride=(24, 1))), T(4, 12, device="cpu"), 1, 1, 0, 0),
    (("aten.as_strided_.default", x, [24, 4], [4, 1]), x, 0, 0, 0, 0),
    (("aten.eye.default", 8), T(8, 8), 2, 0, 0, 0),
    # 2^30 floats are 4 GiB, in pieces of 2.
    (("aten.zeros.default", [2**30]), T(2**30), 4 // 2, 0, 0, 0),
    # Numbers, keys, ties; up to 2,304 pairs of 8 bytes are sorted by one block.
    (("aten.randperm.default", 1000), T(1000, dtype="int64"), 3 + 1, 0, 0, 0),
    (("aten.normal.Tensor_Tensor", x, T(4, 24)), T(4, 24), 1 + 2, 0, 0, 3 * 4 * 24),
    (("aten.cat.default", [x, T(4, 24)]), T(8, 24), 1, 0, 0, 0),
    (("aten.cat.default", [T(1, 2) for _ in range(128)]), T(128, 2), 1, 0, 0, 0),
    (("aten.cat.default", [T(1, 2) for _ in range(129)]), T(129, 2), 2, 0, 0, 0),
    # Strided inputs: 64 a launch. Another dtype, or five dimensions: a copy each.
    (("aten.cat.default", [T(1, 2, stride=(4, 2)) for _ in range(64)]), T(64, 2), 1, 0, 0, 0),
    (("aten.cat.default", [T(1, 2, stride=(4, 2)) for _ in range(65)]), T(65, 2), 2, 0, 0, 0),
    (("aten.cat.default", [x, T(4, 24, dtype="bfloat16")], 1), T(4, 48), 2, 0, 0, 0),
    (("aten.cat.default", [T(1, 1, 1, 2, 3), T(1, 1, 1, 2, 3)], 4), T(1, 1, 1, 2, 6), 2, 0, 0, 0),
    (("aten.cat.default", [T(2, 1, 1, 2, 3), T(2, 1, 1, 2, 3)]), T(4, 1, 1, 2, 3), 0, 2, 0, 0),
    # Before a dimension that is there, stack is cat of four dimensions; after the last one it has five.
    (("aten.stack.default", [T(2, 2, 2, 2), T(2, 2, 2, 2)]), T(2, 2, 2, 2, 2), 1, 0, 0, 0),
    (("aten.stack.default", [T(2, 2, 2, 2), T(2, 2, 2, 2)], -1), T(2, 2, 2, 2, 2), 2, 0, 0, 0),
    (("aten.constant_pad_nd.default", x, [1, 1]), T(4, 26), 1 + 1, 0, 0, 0),
    (("aten.constant_pad_nd.default", x, [0, 0, 1, 1]), T(6, 24), 1, 1, 0, 0),
    (("aten.constant_pad_nd.default", x, [0, -1]), T(4, 23), 1, 0, 0, 0),
    # Rows lie together, columns do not.
    (("aten.slice_backward.default", T(2, 24), [4, 24], 0, 0, 2, 1), T(4, 24), 1, 1, 0, 0),
    (("aten.slice_backward.default", T(4, 12), [4, 24], 1, 0, 12, 1), T(4, 24), 1 + 1, 0, 0, 0),
    (("aten.select_backward.default", T(4), [4, 24], 1, 0), T(4, 24), 1 + 1, 0, 0, 0),
    (("aten.diag_embed.default", T(4)), T(4, 4), 1 + 1, 0, 0, 0),
    (("aten.block_diag.default", [T(2, 2), T(3, 3)]), T(5, 5), 1 + 2, 0, 0, 0),
    (("aten.slice_scatter.default", x, T(2, 24), 0, 0, 2), T(4, 24), 0, 1 + 1, 0, 0),
    (("aten.roll.default", x, [1, 1], [0, 1]), T(4, 24), 2, 0, 0, 0),
    (("aten.roll.default", columns, [1], [0]), T(4, 24), 1 + 1, 0, 0, 0),
    (("aten.flip.default", x, [1]), T(4, 24), 1, 0, 0, 0),
    (("aten.tril.default", x), T(4, 24), 1, 0, 0, 0),
    (("aten.reflection_pad2d.default", T(2, 3, 4, 4), [1, 1, 1, 1]), T(2, 3, 6, 6), 1, 0, 0, 0),
    (
        ("aten.reflection_pad2d_backward.default", T(2, 3, 6, 6), T(2, 3, 4, 4), [1, 1, 1, 1]),
        T(2, 3, 4, 4), 2, 0, 0, 2 * 3 * 6 * 6,
    ),
    # Scan (2), write; the host reads the total and whether all are positive (compare, reduce).
    (("aten.repeat_interleave.Tensor", T(5, dtype="int64")), T(9, dtype="int64"), 2 + 1 + 2, 2, 0, 3 * 5),
]  # fmt: skip


@rows(ROWS)
def test_launches(row, maker, target):
    check(row, maker, target)


@pytest.mark.parametrize(("name", "reads"), [("aten.zeros_like.default", 0), ("aten.rand_like.default", 0)])
def test_what_is_like_another_does_not_read_it(maker, target, name, reads):
    assert sum(access.nbytes for access in work_of(maker(name, x, out=T(4, 24)), target).reads) == reads
