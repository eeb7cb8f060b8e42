"""Bytes that a GPU moves for a strided tensor: written in sectors of 32 bytes, fetched two at a time, each whole.

An H200 read 64 bytes for each float that lay 64 or 128 bytes from the next (1.05 M of them: 67.1 MB).
"""

from __future__ import annotations

from functools import lru_cache

from optrace.graph import TensorMeta

#: The least that is written to HBM, a quarter of a cache line, and the least that is fetched from it.
SECTOR = 32
FETCH = 64


def sector_bytes(tensor: TensorMeta, unit: int = SECTOR) -> int:
    """Bytes of the sectors (or other units) that hold a tensor's elements, each once."""
    return _sector_bytes(
        tensor.shape, tensor.stride, tensor.itemsize, tensor.offset * tensor.itemsize % unit, unit
    )


@lru_cache(maxsize=4096)
def _sector_bytes(
    shape: tuple[int, ...], stride: tuple[int, ...], itemsize: int, start: int, unit: int
) -> int:
    """From the fastest dimension outwards: as long as steps stay within a sector or run on, elements are one run; each
    further step is a run of its own."""
    if 0 in shape:
        return 0
    dims = sorted(
        (abs(step) * itemsize, size) for size, step in zip(shape, stride, strict=True) if step and size > 1
    )
    run, count, apart, aligned = itemsize, 1, 0, start == 0
    for step, size in dims:
        if count == 1 and step <= max(run, unit):
            run = (size - 1) * step + run
        else:
            apart = apart or step
            count *= size
            aligned = aligned and step % unit == 0
    if aligned:
        return count * (-(-run // unit) * unit)
    if count == 1:
        return -(-(start + run) // unit) * unit
    # Runs begin anywhere within a unit, at multiples of the element: on average they reach into one more, which a
    # close neighbour shares.
    return count * min(run + unit - itemsize, max(run, apart))
