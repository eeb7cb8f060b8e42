"""Multi-tensor ops, pointwise ops with more than a pass, pooling, resampling and recurrent nets."""

import pytest

from optrace.cost.rules.foreach import multi_tensor_launches
from tests.cost.calls import T
from tests.cost.rows import check, rows

x = T(4, 24)
image = T(2, 3, 8, 8)
part = T(2, 3, 8, 8, stride=(384, 64, 8, 1))
halved = T(2, 3, 4, 4)


def tensors(count=3):
    return [T(10) for _ in range(count)]


def ints(*shape):
    return T(*shape, dtype="int64")


weights = [T(4 * 16, 8), T(4 * 16, 16), T(4 * 16), T(4 * 16)]


ROWS = [
    (("aten._foreach_mul_.Scalar", tensors(), 2.0), None, 1, 0, 0, 3 * 10),
    # 97 tensors with a scalar each: 96 a launch; without: 110.
    (("aten._foreach_mul_.ScalarList", tensors(97), [2.0] * 97), None, 2, 0, 0, 97 * 10),
    (("aten._foreach_mul_.Scalar", tensors(97), 2.0), None, 1, 0, 0, 97 * 10),
    # Mixed dtypes: one kernel a tensor.
    (("aten._foreach_mul_.Scalar", [T(10), T(10, dtype="float16")], 2.0), None, 2, 0, 0, 2 * 10),
    (("aten._foreach_zero_.default", tensors()), None, 1, 0, 0, 0),
    # Clear, partial norms, finish.
    (("aten._foreach_norm.Scalar", tensors()), tensors(), 3, 0, 0, 2 * 3 * 10),
    (("aten._amp_foreach_non_finite_check_and_unscale_.default", tensors(), T(), T()), None, 1, 0, 0, 2 * 3 * 10),
    (("aten._amp_update_scale_.default", T(), ints(), T(), 2.0, 0.5, 2000), T(), 1, 0, 0, 1),
    # Two lists without momentum.
    (
        ("aten._fused_sgd_.default", tensors(65), tensors(65), []), None, 2, 0, 0, 5 * 65 * 10,
    ),
    (("aten.native_dropout.default", x, 0.5, False), (T(4, 24), T(4, 24, dtype="bool")), 1, 1, 0, 0),
    (("aten._fused_dropout.default", x, 0.5), (T(4, 24), T(4, 24, dtype="uint8")), 1, 0, 0, 3 * 4 * 24),
    (("aten.native_dropout_backward.default", x, T(4, 24, dtype="bool"), 2.0), T(4, 24), 1, 0, 0, 2 * 4 * 24),
    (("aten.hardswish.default", x), T(4, 24), 1, 0, 0, 4 * 24),
    (("aten.rrelu_with_noise.default", x, T(4, 24)), T(4, 24), 1, 0, 0, 2 * 4 * 24),
    (("aten.pow.Scalar", 2.0, x), T(4, 24), 1 + 1, 0, 0, 4 * 24),
    (("aten.pow.Tensor_Scalar", x, 2), T(4, 24), 1, 0, 0, 4 * 24),
    (("aten.pow.Tensor_Scalar", x, 1.0), T(4, 24), 0, 1, 0, 0),
    (("aten.masked_fill.Scalar", x, T(4, 24, dtype="bool"), 0.0), T(4, 24), 1, 1, 0, 4 * 24),
    # A pointwise op over 4 GiB, in pieces of 2.
    (("aten.relu.default", T(2**30)), T(2**30), 2, 0, 0, 2**30),
    # Windows of 2 x 2.
    (("aten.avg_pool2d.default", image, [2, 2], [2, 2]), halved, 1, 0, 0, 4 * 2 * 3 * 16),
    (("aten.avg_pool2d.default", part, [2, 2], [2, 2]), halved, 1 + 1, 0, 0, 4 * 2 * 3 * 16),
    (("aten._adaptive_avg_pool2d.default", part, [4, 4]), halved, 1, 0, 0, 4 * 2 * 3 * 16),
    # 2 x 32,768 x 2 planes, 65,535 a launch.
    (("aten.avg_pool3d.default", T(2, 32768, 4, 2, 2), [2]), T(2, 32768, 2, 1, 1), 3, 0, 0, 8 * 2**17),
    (("aten.avg_pool2d_backward.default", halved, image, [2, 2], [2, 2], [0, 0], False, True, None), T(2, 3, 8, 8), 1, 0, 0, 4 * 2 * 3 * 16),
    (
        ("aten.max_pool2d_with_indices_backward.default", halved, image, [2, 2], [2, 2], [0, 0], [1, 1], False, ints(2, 3, 4, 4)),
        T(2, 3, 8, 8), 1 + 1, 0, 0, 2 * 3 * 16,
    ),
    (("aten.avg_pool3d_backward.default", T(1, 2, 2, 2, 2), T(1, 2, 4, 4, 4), [2], [2], [0], False, True, None), T(1, 2, 4, 4, 4), 1 + 1, 0, 0, 8 * 16),
    (("aten.upsample_bilinear2d.default", halved, [8, 8], False), T(2, 3, 8, 8), 1, 0, 0, 8 * 2 * 3 * 64),
    (("aten.upsample_bilinear2d_backward.default", image, [8, 8], [2, 3, 4, 4], False), halved, 1 + 1, 0, 0, 8 * 2 * 3 * 64),
    (("aten.upsample_nearest2d_backward.default", image, [8, 8], [2, 3, 4, 4]), halved, 1, 0, 0, 2 * 3 * 64),
    (("aten.grid_sampler_2d_backward.default", image, T(2, 3, 8, 8), T(2, 8, 8, 2), 0, 0, False, [True, True]), (T(2, 3, 8, 8), T(2, 8, 8, 2)), 1 + 1, 0, 0, 2 * 8 * 2 * 3 * 64),
    (("aten.im2col.default", image, [3, 3], [1, 1], [1, 1], [1, 1]), T(2, 27, 64), 2, 0, 0, 0),
    (("aten.col2im.default", T(2, 27, 64), [8, 8], [3, 3], [1, 1], [1, 1], [1, 1]), image, 1, 0, 0, 2 * 27 * 64),
    (("aten._thnn_fused_lstm_cell.default", T(2, 64), T(2, 64), T(2, 16)), (T(2, 16), T(2, 16), T(2, 64)), 1, 0, 0, 10 * (16 + 16 + 64) * 2),
    (("aten._thnn_fused_lstm_cell_backward_impl.default", T(2, 16), T(2, 16), T(2, 16), T(2, 16), T(2, 64), True), (T(2, 64), T(2, 16), T(64)), 1 + 1, 0, 0, 10 * (128 + 32) + 128),
    (("aten._cudnn_rnn_flatten_weight.default", weights, 4, 8, 2, 16, 0, 1, False, False), T(2000), 1, 4, 0, 0),
]  # fmt: skip


@rows(ROWS)
def test_launches(row, maker, target):
    check(row, maker, target)


@pytest.mark.parametrize(("count", "launches"), [(96, 1), (97, 2)])
def test_a_table_with_scalars_holds_fewer_tensors(count, launches):
    assert multi_tensor_launches([10] * count, 1, scalars=True) == launches
