"""Questions about a tensor's layout that decide which kernel runs and what is copied first (MemoryFormat.h)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from optrace.cost.rules.tensor_iterator import (
    INT32_MAX,
    byte_strides,
    kernels_over,
    merged,
    order_of_dims,
)
from optrace.graph import TensorMeta

#: Dimensions of NCHW and NCDHW tensors, fastest first, when channels come last.
_CHANNELS_LAST = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}


def is_channels_last(tensor: TensorMeta) -> bool:
    """Dense with channels last, so that rows of channels follow one another."""
    order = _CHANNELS_LAST.get(len(tensor.shape))
    if order is None:
        return False
    expected = 1
    for dim in order:
        if tensor.shape[dim] != 1 and tensor.stride[dim] != expected:
            return False
        expected *= tensor.shape[dim]
    return True


def suggests_channels_last(tensor: TensorMeta) -> bool:
    """``suggest_memory_format``: strides grow from channels to batch, gaps allowed."""
    order = _CHANNELS_LAST.get(len(tensor.shape))
    if order is None or tensor.stride[1] == 0:
        return False
    least = 0
    for dim in order:
        size, stride = tensor.shape[dim], tensor.stride[dim]
        if size == 0 or stride < least or (dim == 0 and least == tensor.stride[1]):
            return False
        least = stride * size if size > 1 else stride
    return True


def is_dense(tensor: TensorMeta) -> bool:
    """Elements fill one run of memory without gaps or overlaps, in some order of the dimensions."""
    expected = 1
    for stride, size in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def fits_32_bit_index(tensor: TensorMeta) -> bool:
    """``canUse32BitIndexMath``: element numbers, not bytes."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride, strict=True))
    return tensor.numel < INT32_MAX and last < INT32_MAX


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(1, shape[dim + 1])
    return tuple(strides)


def contiguous(tensor: TensorMeta, *, dtype: str | None = None) -> TensorMeta:
    """A row-major tensor of the same shape, such as ``.contiguous()`` makes."""
    return replace(tensor, stride=contiguous_strides(tensor.shape), offset=0, dtype=dtype or tensor.dtype)


def copies_as_memcpy(source: TensorMeta, destination: TensorMeta) -> bool:
    """A device copy that moves one run of bytes to another: equal dtypes, and after merging dimensions both sides
    are one run (``memcpy_eligible`` in Copy.cu)."""
    if source.dtype != destination.dtype:
        return False
    if destination.numel == 1:
        return True
    shape = destination.shape
    strides = [byte_strides(destination, shape), byte_strides(source, shape)]
    run = merged(shape, strides, order_of_dims(shape, strides))
    return len(run.shape) <= 1 and all(
        steps in ((), (tensor.itemsize,))
        for steps, tensor in zip(run.strides, (destination, source), strict=True)
    )


def copy_launches(source: TensorMeta, destination: TensorMeta) -> tuple[int, int]:
    """(kernels, memcpys) of ``destination.copy_(source)`` within a device (Copy.cu)."""
    if not destination.numel:
        return 0, 0
    if copies_as_memcpy(source, destination):
        return 0, 1
    return kernels_over(destination.shape, destination, source), 0


def contiguous_kernels(*tensors: TensorMeta) -> int:
    """Launches of ``.contiguous()`` on each: a copy kernel where it is not row-major already."""
    return sum(
        kernels_over(tensor.shape, tensor, contiguous(tensor))
        for tensor in tensors
        if not tensor.is_contiguous
    )


def contiguous_copies(*tensors: TensorMeta) -> tuple[int, ...]:
    """Bytes of the copies that ``.contiguous()`` makes."""
    return tuple(tensor.numel * tensor.itemsize for tensor in tensors if not tensor.is_contiguous)
