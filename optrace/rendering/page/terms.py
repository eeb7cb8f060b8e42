"""A call's device time taken apart by what it goes with: nothing, the HBM bandwidth, the L2's, the peak.

The page slides bandwidth and peak, so it needs not a time but what the time is made of. Launches that move data are
``fixed + work + HBM + L2``: such terms add. A launch of matrix units takes the longer of its arithmetic and its bytes, and
its arithmetic, that of the tiling which ends soonest, is piecewise linear in one / peak. All parts are asked of the
cost model itself, at rates without limit or at other peaks, so that the model stands in one place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from optrace.cost.device import device_time, launches_of
from optrace.cost.device.kernel import SMALL, Kernel, Launch, Product
from optrace.cost.device.rates import Rates
from optrace.cost.l2 import Traffic
from optrace.cost.profiles import GpuProfile, Target, with_kernel_rates
from optrace.cost.work import Work
from optrace.graph import OpNode

#: A rate that costs nothing.
_FREE = 1e30

#: How many times slower than the profile's the peaks can be set, and where arithmetic is looked at first.
_SLOWER = (5e-3, 0.1, 0.5, 1.0, 2.0, 10.0, 100.0, 2e4)

#: Peaks at which arithmetic is all that is left to see.
_CRAWLING = 1e6

#: A stretch is straight where its inside is this near to the line, and is halved so often at most.
_STRAIGHT, _DEEPEST = 1e-5, 12

#: Microseconds of arithmetic at peaks that many times slower.
Knot = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Overlap:
    """A launch that takes the longer of its arithmetic, by ``computing``, and ``fixed_us + hbm_us + l2_us``.

    It counts as bound by memory where ``hbm_us + l2_us`` are more than half of it (``product``), else where they and
    ``fixed_us`` are the longer.
    """

    computing: tuple[Knot, ...]
    fixed_us: float
    hbm_us: float
    l2_us: float
    product: bool = True

    @property
    def us(self) -> float:
        """At the profile's own rates."""
        return max(dict(self.computing)[1.0], self.fixed_us + self.hbm_us + self.l2_us)


@dataclass(frozen=True, slots=True)
class DeviceTerms:
    """Microseconds at the profile's own rates; ``us`` is the whole. ``fixed_us`` an empty launch takes too, ``work_us``
    is what thread blocks take besides moving bytes."""

    fixed_us: float = 0.0
    work_us: float = 0.0
    hbm_us: float = 0.0
    l2_us: float = 0.0
    overlaps: tuple[Overlap, ...] = ()

    @property
    def us(self) -> float:
        own = self.fixed_us + self.work_us + self.hbm_us + self.l2_us
        return own + sum(overlap.us for overlap in self.overlaps)

    def __add__(self, other: DeviceTerms) -> DeviceTerms:
        return DeviceTerms(
            self.fixed_us + other.fixed_us,
            self.work_us + other.work_us,
            self.hbm_us + other.hbm_us,
            self.l2_us + other.l2_us,
            self.overlaps + other.overlaps,
        )


class TermsModel:
    """Takes device times apart for one GPU, each distinct launch once: a program repeats its layers."""

    def __init__(self, gpu: GpuProfile, target: Target) -> None:
        self._target = target
        self._gpu = with_kernel_rates(gpu)
        self._rates = Rates(self._gpu)
        self._without_l2 = Rates(_with(self._gpu, l2=_FREE))
        self._math_only: dict[float, Rates] = {}
        self._launches: dict[tuple[Launch, float], DeviceTerms] = {}
        self._computing: dict[Product, tuple[Knot, ...]] = {}

    def of_call(self, node: OpNode, work: Work, traffic: Traffic) -> DeviceTerms:
        """As ``DeviceModel.time`` prices a call; nothing where its launches are not known."""
        launched = launches_of(node, work, self._target)
        touched = sum(launch.nbytes * launch.count for launch in launched)
        crossing = (traffic.read + traffic.written) / touched if touched else 0.0
        return sum((self._of_launch(launch, launch.nbytes * crossing) for launch in launched), DeviceTerms())

    def of_work(self, work: Work, hbm_bytes: int) -> DeviceTerms:
        """As ``device_time`` prices work that is no call of the run."""
        if not work.launches:
            return DeviceTerms()

        def us(bandwidth: float, l2: float, slower: float) -> float:
            time = device_time(work, hbm_bytes, _with(self._gpu, bandwidth, l2, slower))
            assert time is not None
            return time.us - small_us

        small_us = (work.launches - 1) * self._rates.launch_us(SMALL, 0.0)[0]
        fixed = us(_FREE, _FREE, 1 / _FREE)
        hbm = us(self._gpu.bandwidth_tb_s, _FREE, 1 / _FREE) - fixed
        l2 = us(_FREE, self._gpu.l2_bandwidth_tb_s, 1 / _FREE) - fixed
        slowed = us(_FREE, _FREE, _CRAWLING)
        if slowed <= fixed:
            return DeviceTerms(small_us + fixed, 0.0, hbm, l2)
        knots = tuple((slower, slowed * slower / _CRAWLING) for slower in _SLOWER)
        return DeviceTerms(small_us, overlaps=(Overlap(knots, fixed, hbm, l2, product=False),))

    def of_region(self, work: Work, hbm_bytes: int) -> DeviceTerms:
        """As a kernel of generated code is priced: a stream, or its arithmetic on the plain units where that takes
        longer."""
        stream = self.of_work(work, hbm_bytes)
        peak = self._gpu.peak_flops(work.math_dtype, matmul=False)
        if not work.launches or not work.flops or not peak or stream.overlaps:
            return stream
        math_us = work.flops / (peak * 1e-6)
        knots = tuple((slower, math_us * slower) for slower in _SLOWER)
        overlap = Overlap(knots, stream.fixed_us, stream.hbm_us, stream.l2_us, product=False)
        return DeviceTerms(overlaps=(overlap,))

    def _of_launch(self, launch: Launch, hbm_bytes: float) -> DeviceTerms:
        key = (launch, hbm_bytes)
        found = self._launches.get(key)
        if found is None:
            us, moving = self._rates.launch_us(launch, hbm_bytes)
            hbm = self._without_l2.launch_us(launch, hbm_bytes)[1]
            if isinstance(launch, Kernel):
                floor = launch.count * self._gpu.kernels[launch.kind].floor_us
                found = DeviceTerms(floor, us - moving - floor, hbm, moving - hbm)
            else:
                floor = self._gpu.products[launch.kind].floor_us
                found = DeviceTerms(overlaps=(Overlap(self._knots(launch), floor, hbm, moving - hbm),))
            self._launches[key] = found
        return found

    def _knots(self, product: Product) -> tuple[Knot, ...]:
        knots = self._computing.get(product)
        if knots is None:
            knots = self._computing[product] = knots_of(
                lambda slower: self._slowed(slower).launch_us(product, 0.0)[0], _SLOWER
            )
        return knots

    def _slowed(self, slower: float) -> Rates:
        rates = self._math_only.get(slower)
        if rates is None:
            rates = self._math_only[slower] = Rates(_with(self._gpu, _FREE, _FREE, slower))
        return rates


def _with(
    gpu: GpuProfile, bandwidth: float | None = None, l2: float | None = None, slower: float = 1.0
) -> GpuProfile:
    """A profile at other rates: bandwidths in TB/s, peaks so many times slower."""
    return msgspec.structs.replace(
        gpu,
        bandwidth_tb_s=gpu.bandwidth_tb_s if bandwidth is None else bandwidth,
        l2_bandwidth_tb_s=gpu.l2_bandwidth_tb_s if l2 is None else l2,
        peak_tflops={dtype: rate / slower for dtype, rate in gpu.peak_tflops.items()},
    )


def knots_of(time: Callable[[float], float], places: Sequence[float]) -> tuple[Knot, ...]:
    """Knots between which a piecewise linear ``time`` is straight, from the first to the last of ``places``."""
    found = [(place, time(place)) for place in places[:1]]
    stretches = [((a, time(a)), (b, time(b)), 0) for a, b in reversed(list(itertools.pairwise(places)))]
    while stretches:
        left, right, depth = stretches.pop()
        inside = [
            (x, time(x)) for part in (0.25, 0.5, 0.75) for x in [left[0] * (right[0] / left[0]) ** part]
        ]
        if depth == _DEEPEST or all(abs(_between(left, right, x) - y) <= _STRAIGHT * y for x, y in inside):
            found.append(right)
        else:
            middle = inside[1]
            stretches += [(middle, right, depth + 1), (left, middle, depth + 1)]
    return tuple(found)


def _between(left: Knot, right: Knot, x: float) -> float:
    return left[1] + (right[1] - left[1]) * (x - left[0]) / (right[0] - left[0])
