"""Which tensors of one storage share bytes."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optrace.graph import TensorMeta
from optrace.graph.regions import region_of


def meta(shape, stride, offset=0, dtype="float32"):
    return TensorMeta(tuple(shape), tuple(stride), dtype, "cuda:0", 0, 1 << 20, offset, 0)


def touched(tensor):
    """Every byte of the tensor, one by one."""
    item = tensor.itemsize
    return {
        (tensor.offset + sum(i * s for i, s in zip(index, tensor.stride, strict=True))) * item + byte
        for index in itertools.product(*map(range, tensor.shape))
        for byte in range(item)
    }


@pytest.mark.parametrize(
    ("a", "b", "share"),
    [
        # Rows 0-1 and rows 2-3 of [4, 8].
        (meta([2, 8], [8, 1]), meta([2, 8], [8, 1], 16), False),
        (meta([2, 8], [8, 1]), meta([2, 8], [8, 1], 8), True),
        # Left and right half of the columns interleave and share nothing.
        (meta([4, 4], [8, 1]), meta([4, 4], [8, 1], 4), False),
        (meta([4, 5], [8, 1]), meta([4, 4], [8, 1], 4), True),
        # A KV cache [2, 3, 16, 8]: positions 0-3 against position 4, and against the whole.
        (meta([2, 3, 4, 8], [384, 128, 8, 1]), meta([2, 3, 1, 8], [384, 128, 8, 1], 32), False),
        (meta([2, 3, 4, 8], [384, 128, 8, 1]), meta([2, 3, 16, 8], [384, 128, 8, 1]), True),
        # Even and odd elements.
        (meta([8], [2]), meta([8], [2], 1), False),
        # A transposed view has the bytes of its base.
        (meta([4, 8], [8, 1]), meta([8, 4], [1, 8]), True),
        # A broadcast scalar.
        (meta([4], [0], 3), meta([3], [1]), False),
        (meta([4], [0], 3), meta([4], [1]), True),
        # Windows of 3 that step by 1 over elements 0-7 (``unfold``): element 6 is the last window's, 8 is nobody's.
        (meta([6, 3], [1, 1]), meta([2], [1], 6), True),
        (meta([6, 3], [1, 1]), meta([2], [1], 8), False),
    ],
)
def test_overlap(a, b, share):
    assert bool(touched(a) & touched(b)) is share
    assert region_of(a).overlaps(region_of(b)) is share
    assert region_of(b).overlaps(region_of(a)) is share


def test_empty_and_storageless_tensors_have_no_region():
    assert region_of(meta([0, 4], [4, 1])) is None
    assert region_of(TensorMeta((2,), (1,), "float32", "cpu", -1, 0, 0, 0)) is None


tensors = st.builds(
    meta,
    st.lists(st.integers(1, 4), min_size=2, max_size=2),
    st.sampled_from([(1, 4), (4, 1), (8, 1), (8, 2), (16, 4), (5, 1), (0, 1), (3, 2), (1, 1), (2, 2)]),
    st.integers(0, 20),
)


@settings(max_examples=300, deadline=None)
@given(tensors, tensors)
def test_overlap_never_misses_a_shared_byte(a, b):
    if touched(a) & touched(b):
        assert region_of(a).overlaps(region_of(b))


@settings(max_examples=300, deadline=None)
@given(tensors, tensors)
def test_covers_is_never_claimed_wrongly(a, b):
    if region_of(a).covers(region_of(b)):
        assert touched(b) <= touched(a)


def test_nbytes_counts_each_element_once():
    assert meta([4, 8], [8, 1]).nbytes == 4 * 8 * 4
    assert meta([4, 8], [0, 1]).nbytes == 8 * 4  # one row, shown four times
    assert meta([6, 3], [1, 1]).nbytes == (6 + 3 - 1) * 4  # windows of 3 over 8 elements
    assert meta([0], [1]).nbytes == 0
    assert meta([4], [1], dtype="bfloat16").nbytes == 4 * 2


@pytest.mark.parametrize(
    ("shape", "stride", "contiguous"),
    [
        ([4, 8], [8, 1], True),
        ([4, 8], [1, 4], False),
        ([4, 8], [16, 1], False),
        ([4, 1], [1, 7], True),  # no step is made along a dimension of one
        ([0, 8], [1, 3], True),  # nor in an empty tensor
        ([], [], True),
        ([4, 8], [0, 1], False),
    ],
)
def test_contiguous_in_torch_s_sense(shape, stride, contiguous):
    assert meta(shape, stride).is_contiguous is contiguous
    assert torch.empty_strided(shape, stride, device="meta").is_contiguous() is contiguous
