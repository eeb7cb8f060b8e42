"""Bytes that a GPU moves for a strided tensor: memory is fetched in sectors of 32 bytes, each whole."""

from __future__ import annotations

from functools import lru_cache

from optrace.graph import TensorMeta

#: The least that crosses HBM: a quarter of a cache line.
SECTOR = 32


def sector_bytes(tensor: TensorMeta) -> int:
    """Bytes of the sectors that hold a tensor's elements, each sector once."""
    return _sector_bytes(
        tensor.shape, tensor.stride, tensor.itemsize, tensor.offset * tensor.itemsize % SECTOR
    )


@lru_cache(maxsize=4096)
def _sector_bytes(shape: tuple[int, ...], stride: tuple[int, ...], itemsize: int, start: int) -> int:
    """From the fastest dimension outwards: as long as steps stay within a sector or run on, elements are one run; each
    further step is a run of its own."""
    if 0 in shape:
        return 0
    dims = sorted(
        (abs(step) * itemsize, size) for size, step in zip(shape, stride, strict=True) if step and size > 1
    )
    run, count, aligned = itemsize, 1, start == 0
    for step, size in dims:
        if count == 1 and step <= max(run, SECTOR):
            run = (size - 1) * step + run
        else:
            count *= size
            aligned = aligned and step % SECTOR == 0
    if aligned:
        return count * (-(-run // SECTOR) * SECTOR)
    # Runs begin anywhere within a sector, at multiples of the element: on average they reach into one more.
    return count * (run + SECTOR - itemsize) if count > 1 else -(-(start + run) // SECTOR) * SECTOR
