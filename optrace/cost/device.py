"""Device time of a call from its work, its HBM traffic and a GPU profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from optrace.cost.profiles import GpuProfile
from optrace.cost.work import MATRIX_KINDS, KernelKind, Work

Roof = Literal["memory", "compute"]


@dataclass(frozen=True, slots=True)
class KindShares:
    """What kernels of a kind reach: their part of the bandwidth that a vectorized stream reaches and of the math
    that a large bf16 product reaches, and how many times an empty kernel's time a launch takes."""

    bandwidth: float = 1.0
    math: float = 1.0
    floor: float = 1.0


#: From the kernels of 218 programs on an H200 (``optrace accuracy`` prices the same record): medians of calls over
#: 50 us for the shares, of those under 8 us for the floors. An estimate on any other GPU.
KIND_SHARES: dict[KernelKind, KindShares] = {
    "reduction": KindShares(bandwidth=0.48, floor=1.6),
    "transpose": KindShares(bandwidth=0.5, floor=1.3),
    "gather": KindShares(bandwidth=0.35, floor=1.4),
    "foreach": KindShares(bandwidth=0.8, floor=3.0),
    "matmul": KindShares(bandwidth=0.45, math=0.85, floor=2.2),
    "convolution": KindShares(bandwidth=0.45, math=0.45, floor=1.8),
    "attention": KindShares(bandwidth=0.4, math=0.5, floor=1.8),
}
_PLAIN = KindShares()


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Microseconds on the device, the side of the roofline they come from, and the roofline's own answer:
    what the call would take at the datasheet's rates with no fixed cost."""

    us: float
    roof: Roof
    roofline_us: float


def peak_flops(work: Work, gpu: GpuProfile) -> float | None:
    """Peak FLOP/s of the units that do a call's arithmetic. float32 convolutions run in TF32, matmuls do not
    (torch's defaults for ``torch.backends.cudnn.allow_tf32`` and ``torch.backends.cuda.matmul.allow_tf32``)."""
    return gpu.peak_flops(work.math_dtype, matmul=work.kind in MATRIX_KINDS, tf32=work.kind == "convolution")


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
    peak = peak_flops(work, gpu)
    math_us = flops / (peak * 1e-6) if peak else 0.0
    hbm_us = hbm_bytes / bandwidth
    shares = KIND_SHARES.get(work.kind, _PLAIN)
    memory_us = max(
        hbm_us / (gpu.bandwidth_efficiency * shares.bandwidth),
        work.tensor_bytes / (gpu.l2_bandwidth_tb_s * 1e6 * shares.bandwidth),
    )
    achieved_math_us = math_us / (gpu.matmul_efficiency * shares.math if matmul else 1.0)
    return DeviceTime(
        us=work.launches * gpu.kernel_floor_us * shares.floor + max(memory_us, achieved_math_us),
        roof="compute" if achieved_math_us > memory_us else "memory",
        roofline_us=max(hbm_us, math_us),
    )
