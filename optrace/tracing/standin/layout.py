"""Strides of tensors: row-major, permuted, channels-last."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def permuted(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Dense strides with the dimensions laid out in `order`, outermost first."""
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def in_format(shape: Sequence[int], memory_format: torch.memory_format) -> tuple[int, ...]:
    """Strides of a memory format."""
    if memory_format == torch.channels_last:
        return permuted(shape, (0, 2, 3, 1))
    if memory_format == torch.channels_last_3d:
        return permuted(shape, (0, 2, 3, 4, 1))
    return contiguous(shape)


def dense(t: Tensor) -> bool:
    """Whether the elements of `t` fill a block of memory, in whatever order."""
    step = 1
    for stride, size in sorted((st, si) for st, si in zip(t.stride(), t.shape, strict=True) if si != 1):
        if stride != step:
            return False
        step *= size
    return True
