"""The order of a call's passes, and the sectors of strided tensors."""

import pytest

from optrace.cost.passes import passes_of
from optrace.cost.sectors import sector_bytes
from optrace.cost.work import Access, Pass, Work
from optrace.graph import TensorMeta


def access(number, nbytes):
    return Access(TensorMeta((nbytes,), (1,), "uint8", "cuda:0", number, nbytes, 0, number), nbytes)


DATA, WEIGHT, RESULT = access(0, 100), access(1, 40), access(2, 80)


def test_one_kernel_is_one_pass():
    work = Work(kernels=1, reads=(DATA, WEIGHT), writes=(RESULT,))
    assert passes_of(work) == (Pass((DATA, WEIGHT), (RESULT,)),)


def test_layout_copies_come_first_and_the_result_is_copied_back():
    """Temporaries of 100 and 40 bytes are the operands', one of 80 is the result in the kernel's layout."""
    work = Work(kernels=4, reads=(DATA, WEIGHT), writes=(RESULT,), scratch=(100, 40, 80), kind="convolution")
    assert passes_of(work) == (
        Pass((DATA,), (0,)),
        Pass((WEIGHT,), (1,)),
        Pass((0, 1), (2,), is_product=True),
        Pass((2,), (RESULT,)),
    )


def test_a_second_pass_writes():
    """Moments first, then the elements once more; two and a half times more are three passes more."""
    work = Work(kernels=2, reads=(DATA,), writes=(RESULT,), rereads=(DATA,))
    assert passes_of(work) == (Pass((DATA,)), Pass((DATA,), (RESULT,)))
    often = Work(kernels=1, reads=(DATA,), writes=(RESULT,), rereads=(Access(DATA.tensor, 250),))
    assert [sum(a.nbytes for a in p.reads) for p in passes_of(often)] == [100, 100, 100, 50]


def test_what_a_product_reads_again_is_no_pass():
    work = Work(kernels=1, reads=(DATA, WEIGHT), writes=(RESULT,), rereads=(DATA,), kind="matmul")
    assert passes_of(work) == (Pass((DATA, WEIGHT), (RESULT,), is_product=True),)


def test_a_rule_has_the_last_word():
    own = (Pass((DATA,), (RESULT,), is_copy=True),)
    assert passes_of(Work(kernels=0, memcpys=1, reads=(WEIGHT,), passes=own)) == own


@pytest.mark.parametrize(
    ("shape", "stride", "offset", "expected"),
    [
        ((8, 64), (64, 1), 0, 8 * 64 * 4),
        # Every second float: all sectors of the row's span.
        ((8, 32), (64, 2), 0, 8 * 64 * 4),
        # A float every 64 bytes takes a sector of 32.
        ((128,), (16,), 0, 128 * 32),
        # Three floats a row: one sector each; where they may start anywhere, 12 + 32 - 4 on average.
        ((10, 3), (64, 1), 0, 10 * 32),
        ((10, 3), (65, 1), 0, 10 * (12 + 32 - 4)),
        # Ten floats of eleven a row: what a row's last sector reaches beyond is the next row's.
        ((10, 10), (11, 1), 0, 10 * 11 * 4),
        # Transposed, all elements are there.
        ((64, 8), (1, 64), 0, 8 * 64 * 4),
        # Repeated along a dimension.
        ((5, 8), (0, 1), 0, 8 * 4),
        ((1,), (1,), 7, 32),
        ((0, 4), (4, 1), 0, 0),
    ],
)
def test_sectors(shape, stride, offset, expected):
    tensor = TensorMeta(shape, stride, "float32", "cuda:0", 0, 1 << 20, offset, 0)
    assert sector_bytes(tensor) == expected
