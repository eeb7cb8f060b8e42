"""Device time of a call from its work, its HBM traffic and a GPU profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from optrace.cost.profiles import GpuProfile
from optrace.cost.work import MATRIX_KINDS, Work

Roof = Literal["memory", "compute"]


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Microseconds on the device, the side of the roofline they come from, and the roofline's own answer:
    what the call would take at the datasheet's rates with no fixed cost."""

    us: float
    roof: Roof
    roofline_us: float


def device_time(work: Work, hbm_bytes: int, gpu: GpuProfile) -> DeviceTime | None:
    """Fixed time a launch, plus the slowest of HBM traffic, L2 traffic and arithmetic; None if not known.

    Roofline model (Williams, Waterman, Patterson 2009), with the profile's achieved shares of the peaks.
    """
    if work.launches is None:
        return None
    if not work.launches:
        return DeviceTime(0.0, "memory", 0.0)
    bandwidth = gpu.bandwidth_tb_s * 1e6  # bytes a microsecond
    matmul = work.kind in MATRIX_KINDS
    flops = (work.matmul_flops if matmul else work.flops) or 0
    peak = gpu.peak_flops(work.math_dtype, matmul=matmul)
    math_us = flops / (peak * 1e-6) if peak else 0.0
    hbm_us = hbm_bytes / bandwidth
    memory_us = max(
        hbm_us / gpu.bandwidth_efficiency,
        work.tensor_bytes / (gpu.l2_bandwidth_tb_s * 1e6),
    )
    achieved_math_us = math_us / (gpu.matmul_efficiency if matmul else 1.0)
    return DeviceTime(
        us=work.launches * gpu.kernel_floor_us + max(memory_us, achieved_math_us),
        roof="compute" if achieved_math_us > memory_us else "memory",
        roofline_us=max(hbm_us, math_us),
    )
