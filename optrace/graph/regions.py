"""Which bytes of its storage a tensor shows, and whether two tensors share any.

Bounding ranges are not enough: two slices of a KV cache ``[batch, heads, positions, dim]`` along
``positions`` interleave in memory and share no byte.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from optrace.graph.nouns import TensorMeta


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes ``start + sum(i * stride)`` for ``0 <= i < count`` of each of ``dims``; ``end`` is exclusive.

    ``dims`` are ``(count, stride in bytes)``, widest stride first and each stride once; neighbours are
    merged where they tile.
    """

    start: int
    end: int
    dims: tuple[tuple[int, int], ...]

    @property
    def is_range(self) -> bool:
        """Every byte of [start, end) belongs to the region."""
        return len(self.dims) == 1 and self.dims[0][1] == 1

    def covers(self, other: Region) -> bool:
        """Whether every byte of ``other`` is certainly in this region."""
        if self.is_range:
            return self.start <= other.start and other.end <= self.end
        return self == other

    def overlaps(self, other: Region) -> bool:
        """Whether the two may share a byte (True where that cannot be told)."""
        if self.end <= other.start or other.end <= self.start:
            return False
        if self.is_range and other.is_range:
            return True
        return not _disjoint(self, other)


def region_of(tensor: TensorMeta) -> Region | None:
    """The bytes of a strided tensor; None when it has none."""
    if tensor.storage < 0 or 0 in tensor.shape:
        return None
    item = tensor.itemsize
    dims = sorted(
        ((n, s * item) for n, s in zip(tensor.shape, tensor.stride, strict=True) if n > 1 and s > 0),
        key=lambda dim: -dim[1],
    )
    dims.append((item, 1))
    merged: list[tuple[int, int]] = []
    for count, stride in dims:
        if merged and merged[-1][1] == stride:
            # Windows that step by their own elements (``unfold(0, 3, 1)``): together one longer run of them.
            merged[-1] = (merged[-1][0] + count - 1, stride)
        elif merged and merged[-1][1] == count * stride:
            merged[-1] = (merged[-1][0] * count, stride)
        else:
            merged.append((count, stride))
    start = tensor.offset * item
    return Region(start, start + 1 + sum((n - 1) * s for n, s in merged), tuple(merged))


def _disjoint(a: Region, b: Region) -> bool:
    """Compare both as boxes in one mixed-radix number system whose radices are all their strides.

    Tensors cut from one buffer have strides that divide each other; each address then has one digit a
    stride, a region is a box of digits, and boxes that miss each other in one digit share nothing.
    """
    radices = sorted({stride for _, stride in (*a.dims, *b.dims)}, reverse=True)
    if any(wide % narrow for wide, narrow in itertools.pairwise(radices)):
        return False
    box_a, box_b = _box(a, radices), _box(b, radices)
    if box_a is None or box_b is None:
        return False
    return any(
        a_last < b_first or b_last < a_first
        for (a_first, a_last), (b_first, b_last) in zip(box_a, box_b, strict=True)
    )


def _box(region: Region, radices: list[int]) -> list[tuple[int, int]] | None:
    """First and last digit at each radix, or None where the region is no box in this system."""
    counts = {stride: count for count, stride in region.dims}
    box: list[tuple[int, int]] = []
    carried = 1
    for position in range(len(radices) - 1, -1, -1):
        radix = radices[position]
        count = counts.get(radix, 1)
        if carried > 1 and count > 1:
            return None
        count *= carried
        carried = 1
        if position == 0:
            first = region.start // radix
        else:
            base = radices[position - 1] // radix
            first = region.start // radix % base
            if first + count > base:
                if first or count % base:
                    return None
                carried, count = count // base, base
        box.append((first, first + count - 1))
    return box
