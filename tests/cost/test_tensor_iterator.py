"""How dimensions are ordered, merged and cut, and which copies are memcpys."""

import pytest

from optrace.cost.rules.layouts import (
    copies_as_memcpy,
    is_channels_last,
    is_dense,
    suggests_channels_last,
)
from optrace.cost.rules.tensor_iterator import (
    byte_strides,
    kernels_over,
    merged,
    order_of_dims,
    result_is_contiguous,
)
from tests.cost.calls import T


@pytest.fixture
def meta(maker):
    return lambda *shape, **kwargs: maker("aten.relu.default", T(*shape, **kwargs), out=T()).inputs[0]


NHWC = {"stride": (8 * 4 * 4, 1, 8 * 4, 8)}


def test_contiguous_dimensions_merge_into_one(meta):
    tensor = meta(2, 3, 4)
    strides = [byte_strides(tensor, tensor.shape)]
    run = merged(tensor.shape, strides, order_of_dims(tensor.shape, strides))
    assert (run.shape, run.strides) == ((24,), ((4,),))


def test_a_broadcast_keeps_dimensions_apart(meta):
    bias = meta(4)
    strides = [byte_strides(meta(2, 3, 4), (2, 3, 4)), byte_strides(bias, (2, 3, 4))]
    run = merged((2, 3, 4), strides, order_of_dims((2, 3, 4), strides))
    assert (run.shape, run.strides) == ((4, 6), ((4, 16), (4, 0)))


@pytest.mark.parametrize(
    ("elements", "kernels"),
    [
        (2**29, 1),  # 2 GiB of floats: the last one starts at 2^31 - 4
        (2**29 + 1, 2),
        (2**31, 8 // 2),  # 8 GiB in pieces of 2
    ],
)
def test_pieces_that_32_bit_offsets_reach(meta, elements, kernels):
    assert kernels_over((elements,), meta(elements)) == kernels


def test_layouts(meta):
    assert is_channels_last(meta(2, 8, 4, 4, **NHWC))
    assert suggests_channels_last(meta(2, 8, 4, 4, **NHWC))
    assert not is_channels_last(meta(2, 8, 4, 4))
    # A slice of channels: the order is suggested, the memory has gaps.
    part = meta(2, 4, 4, 4, stride=NHWC["stride"])
    assert suggests_channels_last(part)
    assert not is_channels_last(part)
    assert not is_dense(part)
    assert is_dense(meta(4, 3, stride=(1, 4)))


def test_copies_of_one_run_are_memcpys(meta):
    assert copies_as_memcpy(meta(4, 24), meta(4, 24))
    assert copies_as_memcpy(meta(2, 8, 4, 4, **NHWC), meta(2, 8, 4, 4, **NHWC))
    assert not copies_as_memcpy(meta(4, 24, stride=(1, 4)), meta(4, 24))
    assert not copies_as_memcpy(meta(4, 24), meta(4, 24, dtype="bfloat16"))
    assert not copies_as_memcpy(meta(4, 24, stride=(48, 1)), meta(4, 24, stride=(48, 1)))


def test_a_result_keeps_the_order_of_its_operands(meta):
    assert result_is_contiguous(meta(4, 24), meta(4, 24))
    assert not result_is_contiguous(meta(4, 24, stride=(1, 4)), meta(4, 24, stride=(1, 4)))
    # An expanded gradient has no order of its own.
    assert result_is_contiguous(meta(4, 24, stride=(0, 0)), meta(4, 24))


def test_a_dimension_of_one_takes_the_stride_of_its_neighbour():
    # Fastest first: one element, whose stride no step takes, then eight side by side.
    run = merged((8, 1), [(4, 28)], [1, 0])
    assert (run.shape, run.strides) == ((8,), ((4,),))
