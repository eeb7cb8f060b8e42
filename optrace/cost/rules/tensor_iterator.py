"""How TensorIterator lays an op out before its kernels are launched (TensorIterator.cpp).

Dimensions are ordered by stride, neighbours that are one run of memory are merged, and what 32-bit offsets cannot
reach is cut in two until they can: each piece is a launch of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from optrace.graph import TensorMeta

#: The largest offset, in bytes, and the most elements that a kernel with 32-bit indices takes.
INT32_MAX = 2**31 - 1

Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Iteration:
    """Dimensions that a kernel runs over, fastest first; ``strides[k]`` are operand k's, in bytes.

    ``offset`` is where the last operand, a reduction's input, starts within its tensor, in bytes.
    """

    shape: tuple[int, ...]
    strides: tuple[Strides, ...]
    offset: int = 0

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def fits_32_bits(self) -> bool:
        """Every offset can be computed in 32 bits."""
        return self.numel <= INT32_MAX and all(
            1 + sum((size - 1) * step for size, step in zip(self.shape, steps, strict=True)) <= INT32_MAX
            for steps in self.strides
        )

    def pieces(self) -> Iterator[Iteration]:
        """Halves of the dimension with the largest extent, until each fits 32-bit offsets."""
        if self.fits_32_bits():
            yield self
            return
        # The slowest dimension wins a tie.
        dim = max(
            range(len(self.shape)),
            key=lambda d: (max((self.shape[d] - 1) * abs(steps[d]) for steps in self.strides), d),
        )
        half = self.shape[dim] // 2
        for start, size in ((0, half), (half, self.shape[dim] - half)):
            shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
            yield from replace(self, shape=shape, offset=self.offset + start * self.strides[-1][dim]).pieces()


def byte_strides(tensor: TensorMeta, shape: Sequence[int]) -> Strides:
    """Strides of a tensor broadcast to ``shape``, in bytes: 0 along dimensions that it repeats over."""
    missing = len(shape) - len(tensor.shape)
    own = (
        0 if size == 1 and shape[missing + d] != 1 else step * tensor.itemsize
        for d, (size, step) in enumerate(zip(tensor.shape, tensor.stride, strict=True))
    )
    return (0,) * missing + tuple(own)


def order_of_dims(shape: Sequence[int], strides: Sequence[Strides], *, reduction: bool = False) -> list[int]:
    """Dimensions fastest first: an insertion sort by the first operand that tells two of them apart.

    In a reduction the first operand is the output, and dimensions that it does not have come first.
    """

    def comes_after(one: int, other: int) -> int:
        for operand, steps in enumerate(strides):
            first, second = steps[one], steps[other]
            if reduction and operand == 0 and (first == 0) != (second == 0):
                return 1 if second == 0 else -1
            if first == 0 or second == 0:
                continue
            if first != second:
                return 1 if first > second else -1
            if shape[one] > shape[other]:
                return 1
        return 0

    order = list(range(len(shape) - 1, -1, -1))
    for last in range(1, len(order)):
        place = last
        for before in range(last - 1, -1, -1):
            verdict = comes_after(order[before], order[place])
            if verdict > 0:
                order[before], order[place] = order[place], order[before]
                place = before
            elif verdict < 0:
                break
    return order


def merged(shape: Sequence[int], strides: Sequence[Strides], order: Sequence[int]) -> Iteration:
    """The dimensions in ``order``, each merged with the one before it where all operands run on through both."""
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for dim in order:
        size, own = shape[dim], [operand[dim] for operand in strides]
        runs_on = bool(sizes) and (
            sizes[-1] == 1
            or size == 1
            or all(sizes[-1] * s[-1] == step for s, step in zip(steps, own, strict=True))
        )
        if not runs_on:
            sizes.append(size)
            for operand, step in zip(steps, own, strict=True):
                operand.append(step)
            continue
        if sizes[-1] == 1:
            for operand, step in zip(steps, own, strict=True):
                operand[-1] = step
        sizes[-1] *= size
    return Iteration(tuple(sizes), tuple(tuple(operand) for operand in steps))


def kernels_over(shape: Sequence[int], *operands: TensorMeta) -> int:
    """Launches of a pointwise kernel over ``operands`` broadcast to ``shape``: one, unless 32-bit offsets fall short."""
    if 0 in shape:
        return 0
    strides = [byte_strides(tensor, shape) for tensor in operands]
    whole = Iteration(tuple(shape), tuple(strides))
    if whole.fits_32_bits():
        return 1
    return sum(1 for _ in merged(shape, strides, order_of_dims(shape, strides)).pieces())


def result_is_contiguous(*operands: TensorMeta) -> bool:
    """A pointwise op over these gives a row-major result: it keeps the order of its operands' dimensions."""
    shape = max((tensor.shape for tensor in operands), key=lambda s: (len(s), math.prod(s)))
    order = order_of_dims(shape, [byte_strides(tensor, shape) for tensor in operands])
    dims = [dim for dim in order if shape[dim] != 1]
    return dims == sorted(dims, reverse=True)


def broadcast_numel(*shapes: Sequence[int]) -> int:
    """Elements of the shape that these are broadcast to."""
    dims = zip_longest(*map(reversed, shapes), fillvalue=1)
    return math.prod(next((size for size in sizes if size != 1), 1) for sizes in dims)


def broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    """A tensor of ``shape`` can be read as one of shape ``to``."""
    return len(shape) <= len(to) and all(
        size in (1, wide) for size, wide in zip(reversed(shape), reversed(to), strict=False)
    )
