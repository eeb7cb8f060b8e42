"""Device time of a call: what it launches (a table of listers by op), and how long each launch takes on a GPU.

A launch that moves data takes a fixed time, its blocks' work and its bytes; one that multiplies matrices takes its
tiles' rounds over the SMs. The listers hold shapes and no hardware number; the rates by kind are in the GPU's profile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from optrace.cost.device import (
    attention,
    convolutions,
    gathers,
    images,
    lists,
    norms,
    products,
    reductions,
    sequences,
    streams,
)
from optrace.cost.device.kernel import LISTERS, SMALL, Kernel, Launch, Product
from optrace.cost.device.rates import Rates
from optrace.cost.l2 import Traffic
from optrace.cost.profiles import GpuProfile, Target
from optrace.cost.rules.tensor_iterator import INT32_MAX
from optrace.cost.work import MATRIX_KINDS, KernelKind, Work
from optrace.graph import OpNode

#: Imported for the listers that they register.
_MODULES = (attention, convolutions, gathers, images, lists, norms, products, reductions, sequences)

Roof = Literal["memory", "compute"]


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Microseconds on the device, the side of the roofline they come from, and the roofline's own answer:
    what the call would take at the datasheet's rates with no fixed cost."""

    us: float
    roof: Roof
    roofline_us: float


def peak_flops(work: Work, gpu: GpuProfile) -> float | None:
    """Peak FLOP/s of the units that do a call's arithmetic."""
    return gpu.peak_flops(work.math_dtype, matmul=work.kind in MATRIX_KINDS)


def launches_of(node: OpNode, work: Work, target: Target) -> Sequence[Launch]:
    """What a call launches, in order: by its lister, else a kernel over all its bytes after small ones."""
    count = work.launches or 0
    if not count:
        return ()
    lister = LISTERS.get(node.op) or LISTERS.get(node.facts.packet)
    if lister is not None:
        return lister(node, work, target)
    if work.kind in ("elementwise", "foreach"):
        kernel = streams.pointwise(node, work)
        if count == 1 or sum(tensor.nbytes for tensor in node.outputs) > INT32_MAX:
            return streams.pieces(kernel, count)
        return [*[SMALL] * (count - 1), kernel]
    return [*[SMALL] * (count - 1), Kernel("other", float(work.tensor_bytes))]


class DeviceModel:
    """Prices calls on one GPU."""

    def __init__(self, gpu: GpuProfile, target: Target) -> None:
        self._rates = Rates(gpu)
        self._target = target

    def time(self, node: OpNode, work: Work, traffic: Traffic) -> DeviceTime | None:
        """The sum over the call's launches, among which its HBM traffic is shared out by their bytes; None where its
        launches are not known."""
        if work.launches is None:
            return None
        total = bound_by_memory = 0.0
        for launch, us, moving in self.launch_times(node, work, traffic):
            total += us
            if not isinstance(launch, Product) or 2 * moving > us:
                bound_by_memory += us
        return DeviceTime(
            us=total,
            roof="memory" if 2 * bound_by_memory >= total else "compute",
            roofline_us=_roofline_us(work, traffic.read + traffic.written, self._rates.gpu),
        )

    def launch_times(
        self, node: OpNode, work: Work, traffic: Traffic
    ) -> Iterator[tuple[Launch, float, float]]:
        """A call's launches in order, each with its microseconds (of all ``count`` of it) and what moving bytes takes
        of them."""
        launched = launches_of(node, work, self._target)
        touched = sum(launch.nbytes * launch.count for launch in launched)
        crossing = (traffic.read + traffic.written) / touched if touched else 0.0
        for launch in launched:
            yield launch, *self._rates.launch_us(launch, launch.nbytes * crossing)


#: What a kernel of a kind of work is timed as where no call tells more.
_BY_KIND: dict[KernelKind, str] = {
    "elementwise": "vectorized",
    "copy": "memcpy",
    "transpose": "transposing",
    "gather": "gather_rows",
    "foreach": "multi_tensor",
}


def device_time(work: Work, hbm_bytes: int, gpu: GpuProfile) -> DeviceTime | None:
    """Device time of work that is no call of the run: one kernel over its bytes after small ones; products at the
    profile's usual share of the peak. None if its launches are not known."""
    if work.launches is None:
        return None
    if not work.launches:
        return DeviceTime(0.0, "memory", 0.0)
    rates = Rates(gpu)
    small, _ = rates.launch_us(SMALL, 0.0)
    kernel = Kernel(_BY_KIND.get(work.kind, "other"), float(work.tensor_bytes))
    us, _ = rates.launch_us(kernel, min(hbm_bytes, work.tensor_bytes))
    roofline_us = _roofline_us(work, hbm_bytes, gpu)
    peak = peak_flops(work, gpu) if work.kind in MATRIX_KINDS else None
    math_us = (work.matmul_flops or 0) / (peak * 1e-6 * gpu.matmul_efficiency) if peak else 0.0
    roof: Roof = "compute" if math_us > us else "memory"
    return DeviceTime((work.launches - 1) * small + max(us, math_us), roof, roofline_us)


def _roofline_us(work: Work, hbm_bytes: int, gpu: GpuProfile) -> float:
    """Roofline model (Williams, Waterman, Patterson 2009)."""
    flops = (work.matmul_flops if work.kind in MATRIX_KINDS else work.flops) or 0
    peak = peak_flops(work, gpu)
    return max(hbm_bytes / (gpu.bandwidth_tb_s * 1e6), flops / (peak * 1e-6) if peak else 0.0)
