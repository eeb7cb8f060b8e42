"""How long one launch takes, from its shape, its HBM traffic and a GPU's rates."""

from __future__ import annotations

import math

from optrace.cost.device.kernel import Launch, Product
from optrace.cost.profiles import GpuProfile, KernelRates, ProductRates, with_kernel_rates

#: Parts into which the depth of a product with few tiles is split, at most two tiles an SM in all.
_SPLITS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
_LEAST_SPLIT_DEPTH = 32
#: Results of the tiles that an SM works on at once, where a kernel is not persistent, and the most such tiles.
_RESIDENT_RESULTS, _MOST_RESIDENT = 1 << 15, 8


class Rates:
    """A GPU's rates, and the products timed so far: a program repeats its layers."""

    def __init__(self, gpu: GpuProfile) -> None:
        self.gpu = with_kernel_rates(gpu)
        self._computed: dict[Product, float] = {}

    def launch_us(self, launch: Launch, hbm_bytes: float) -> tuple[float, float]:
        """Microseconds of a launch of whose bytes ``hbm_bytes`` cross HBM, and what moving bytes takes of them."""
        gpu = self.gpu
        if isinstance(launch, Product):
            tiled = gpu.products[launch.kind]
            moving = _moving(launch.nbytes, hbm_bytes, tiled, gpu)
            computing = self._computed.get(launch)
            if computing is None:
                computing = self._computed[launch] = _computing_us(launch, tiled, gpu)
            return tiled.floor_us + max(computing, moving), moving
        rates = gpu.kernels[launch.kind]
        moving = _moving(launch.nbytes, hbm_bytes, rates, gpu)
        working = launch.blocks / gpu.sm_count * (rates.block_us + launch.steps * rates.step_us)
        # More crosses HBM where a strided read takes whole sectors, or older bytes are written back meanwhile.
        missed = min(1.0, hbm_bytes / launch.nbytes) if launch.nbytes else 0.0
        waiting = launch.steps * (rates.chain_us + missed * rates.miss_us)
        us = rates.floor_us + max(waiting, working) + launch.tail * rates.tail_us + moving
        return launch.count * us, launch.count * moving


def _moving(nbytes: float, hbm_bytes: float, rates: KernelRates | ProductRates, gpu: GpuProfile) -> float:
    hbm = hbm_bytes * rates.hbm / (gpu.bandwidth_tb_s * 1e6)
    return hbm + max(0.0, nbytes - hbm_bytes) * rates.l2 / (gpu.l2_bandwidth_tb_s * 1e6)


def _computing_us(product: Product, rates: ProductRates, gpu: GpuProfile) -> float:
    """The tiling that ends soonest. A tile takes, for each step of its depth, its multiply-adds and the fetching of
    its operands, one tile after the other on an SM; tiles that are on an SM together hide each other's waits."""
    peak = gpu.peak_flops(product.dtype, matmul=True)
    if peak is None:
        return 0.0
    rate = peak * 1e-6 / gpu.sm_count * rates.math
    itemsize = rates.itemsize(product.dtype)
    best = math.inf
    for rows, columns in rates.tiles:
        area = rows * columns
        tiles = product.batch * math.ceil(product.m / rows) * math.ceil(product.n / columns)
        step = 2 * area / rate + (rows + columns) * itemsize * rates.fetch_ps * 1e-6
        finish = rates.tile_us + area * itemsize * rates.store_ps * 1e-6
        resident = 1 if rates.persistent else max(1, min(_MOST_RESIDENT, _RESIDENT_RESULTS // area))
        for parts in _SPLITS if product.split or rates.splits else (1,):
            if parts > product.most_parts:
                break
            if parts > 1 and (tiles * parts > 2 * gpu.sm_count or product.k < parts * _LEAST_SPLIT_DEPTH):
                break
            rounds = math.ceil(tiles * parts / gpu.sm_count)
            steps = max(1.0, product.k) / parts
            waiting = math.ceil(rounds / resident) * (rates.wait_us + step)
            best = min(best, steps * max(waiting, rounds * step) + rounds * finish)
    return best
