"""Launches of the CUB algorithms under sort, unique, cumsum, nonzero and embedding gradients.

The policies are those that CCCL tunes for compute capability 9.0 and above, where every key type takes the one-sweep
sort (tuning_radix_sort.cuh, dispatch_radix_sort.cuh, dispatch_scan.cuh, dispatch_reduce.cuh).
"""

from __future__ import annotations

from dataclasses import dataclass

ONESWEEP_BITS_A_PASS = 8
SEGMENTED_BITS_A_PASS = 6
#: Keys that one portion of a one-sweep sort takes, near enough: 2^28 rounded down to whole tiles.
ONESWEEP_PORTION = 1 << 28
#: ``SingleTilePolicy``: threads, and 4-byte items a thread.
SINGLE_TILE_THREADS = 256
SINGLE_TILE_ITEMS = 19
#: ``ReducePolicy``: what one block adds up, and so what needs no second kernel.
REDUCE_TILE = 256 * 16
#: Elements that ATen hands CUB at once (``max_cub_size`` in cub.cuh).
MAX_CUB_SIZE = 1 << 30


@dataclass(frozen=True, slots=True)
class Launches:
    """Kernels and memsets of one algorithm."""

    kernels: int
    memsets: int = 0


def radix_sort(n: int, *, key_bytes: int, value_bytes: int = 0, bits: int | None = None) -> Launches:
    """Sorting ``n`` keys, with values or without, on ``bits`` of them (all, unless told).

    What fits one tile is sorted by one block. Otherwise counters and bins are cleared, histograms taken and
    added up, and each pass of 8 bits clears its look-back table and sweeps once.
    """
    items = max(1, SINGLE_TILE_ITEMS * 4 // max(4, key_bytes, value_bytes))
    if n <= SINGLE_TILE_THREADS * items:
        return Launches(1)
    passes = radix_passes(8 * key_bytes if bits is None else bits)
    portions = -(-n // ONESWEEP_PORTION)
    return Launches(kernels=portions + 1 + portions * passes, memsets=2 + portions * passes)


def segmented_radix_sort(*, key_bytes: int) -> Launches:
    """One kernel a pass over all segments; passes of 6 bits, the last ones of 5 where that comes out even."""
    return Launches(radix_passes(8 * key_bytes, segmented=True))


def radix_passes(bits: int, *, segmented: bool = False) -> int:
    """Passes over keys and values that a radix sort on so many bits takes."""
    return -(-bits // (SEGMENTED_BITS_A_PASS if segmented else ONESWEEP_BITS_A_PASS))


def bits_of(number: int) -> int:
    """``get_num_bits``: bits that hold every value up to ``number``."""
    return max(1, number.bit_length())


def scan(n: int) -> int:
    """Kernels of a device-wide scan: clear the tile states, scan; a kernel more for each further 2^30 elements."""
    chunks = -(-n // MAX_CUB_SIZE)
    return 2 * chunks + max(0, chunks - 1)


def select(_n: int) -> int:
    """Kernels of a compaction: clear the tile states, sweep."""
    return 2


def reduce(n: int) -> int:
    """Kernels of a device-wide sum: one block, or partial sums and a second kernel."""
    return 1 if n <= REDUCE_TILE else 2
