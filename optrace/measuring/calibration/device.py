"""A profile of this machine's GPU: a known one, with what was measured here in its place.

Peaks and the datasheet's bandwidth stay: rates are relative to them. Kinds of kernel that no case timed keep the rates that
are known, scaled as for any GPU that was not measured; the profile's note names them.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import msgspec
import torch

from optrace.cost.device.kernel import Kernel
from optrace.cost.host_profile import HostProfile
from optrace.cost.profiles import (
    GpuProfile,
    Pricing,
    UnknownProfileError,
    find_gpu,
    gpu_profiles,
    with_kernel_rates,
)
from optrace.measuring.calibration.ceilings import Ceilings, measure_ceilings
from optrace.measuring.calibration.device_cases import device_cases
from optrace.measuring.calibration.device_launches import Sweep, sweep
from optrace.measuring.calibration.fit import KindFit, TimedLaunch, fit_rates
from optrace.measuring.calibration.machine import driver, throttled
from optrace.tracing import Session

#: The share of the time left that is kept for fitting.
_FIT_SHARE = 0.3
#: Progress is told every so many cases.
_TOLD_EVERY = 200
#: A kernel over this few bytes takes what any kernel does.
_TINY_BYTES = 1 << 15
#: What the datasheet rates of a GPU without one are taken to be: what was reached over the usual share of it.
_USUAL_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class GpuCalibration:
    """The profile, the one it started from, what was measured, and what was in the way."""

    profile: GpuProfile
    shipped: GpuProfile
    ceilings: Ceilings
    swept: Sweep
    kinds: Mapping[str, KindFit]
    warnings: tuple[str, ...]


def calibrate_gpu(
    session: Session,
    host: HostProfile,
    *,
    seconds: float,
    sweep_seconds: float,
    progress: Callable[[str], None],
) -> GpuCalibration:
    """Measure the current GPU in ``seconds``, of which cases may run for ``sweep_seconds``. ``host`` is any host:
    device time does not depend on it. ``session`` is on the GPU."""
    end = time.monotonic() + seconds
    progress("bandwidths, matrix rates, CUDA graphs")
    shipped = shipped_profile(torch.cuda.get_device_name())
    ceilings = measure_ceilings(_properties()["l2_bytes"])
    start = with_ceilings(shipped, ceilings)
    warnings = throttled()
    cases = device_cases()
    swept = sweep(
        session,
        Pricing(start, host),
        cases,
        seconds=min(sweep_seconds, (end - time.monotonic()) * (1 - _FIT_SHARE)),
        progress=lambda done: None if done % _TOLD_EVERY else progress(f"single ops: {done} of {len(cases)}"),
    )
    warnings += [warning for warning in throttled() if warning not in warnings]
    progress(f"rates of {len(swept.timed)} launches")
    fitted = fit_rates(start, swept.timed, seconds=end - time.monotonic())
    if swept.left_out:
        warnings.append(f"no time was left for {swept.left_out} of {len(cases)} single ops")
    profile = msgspec.structs.replace(
        with_floor(fitted.gpu, swept.timed),
        measured=True,
        source=f"optrace calibrate, torch {torch.__version__}, CUDA {torch.version.cuda}, driver {driver() or 'not known'}",
        note=note(fitted.gpu, fitted.kinds, shipped),
    )
    return GpuCalibration(profile, shipped, ceilings, swept, fitted.kinds, tuple(warnings))


def shipped_profile(name: str) -> GpuProfile:
    """What ships for a GPU of this name, brought in line with what torch says of the one here; made from the measured
    one where nothing ships. It has rates for every kind of kernel."""
    properties = _properties()
    try:
        known = find_gpu(name)
    except UnknownProfileError:
        known = _unknown(name, properties)
    else:
        file = resources.files("optrace.profiles").joinpath("gpu", f"{known.key}.toml")
        if isinstance(file, Path) and file.is_file():  # an own profile of the same key stands before it
            known = find_gpu(str(file))
    return with_kernel_rates(msgspec.structs.replace(known, **properties))


def _properties() -> dict[str, int]:
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "sm_count": found.multi_processor_count,
        "memory_bytes": found.total_memory,
        "l2_bytes": found.L2_cache_size,
    }


def _unknown(name: str, properties: Mapping[str, int]) -> GpuProfile:
    """Without a datasheet: the measured GPU's, by the number of SMs; bandwidths from what is reached."""
    base = gpu_profiles()["h200"]
    share = properties["sm_count"] / base.sm_count
    reached = measure_ceilings(properties["l2_bytes"])
    bandwidth = reached.hbm_tb_s / _USUAL_SHARE
    return msgspec.structs.replace(
        base,
        key="-".join(re.findall(r"[a-z0-9]+", name.lower())),
        name=name,
        vendor="",
        aliases=(),
        capability=torch.cuda.get_device_capability(),
        bandwidth_tb_s=round(bandwidth, 3),
        l2_bandwidth_tb_s=round(reached.l2_tb_s or bandwidth, 3),
        peak_tflops={dtype: round(rate * share, 1) for dtype, rate in base.peak_tflops.items()},
        measured=False,
    )


def with_ceilings(gpu: GpuProfile, ceilings: Ceilings) -> GpuProfile:
    """``gpu`` with the bandwidths and matrix rates that were reached, and what a CUDA graph was found to cost. Rates of bytes from the L2 are relative to its
    bandwidth, and go with it."""
    l2 = ceilings.l2_tb_s or gpu.l2_bandwidth_tb_s
    scale = l2 / gpu.l2_bandwidth_tb_s
    replace = msgspec.structs.replace
    best = ceilings.matrix.get("bfloat16, square")
    peak = gpu.peak_tflops.get("bfloat16")
    return replace(
        gpu,
        l2_bandwidth_tb_s=round(l2, 2),
        bandwidth_efficiency=round(min(ceilings.hbm_tb_s / gpu.bandwidth_tb_s, 1.0), 3),
        matmul_efficiency=round(min(best / peak, 1.0), 3) if best and peak else gpu.matmul_efficiency,
        graph_replay_us=gpu.graph_replay_us if ceilings.graph_replay_us is None else ceilings.graph_replay_us,
        graph_launch_us=gpu.graph_launch_us if ceilings.graph_launch_us is None else ceilings.graph_launch_us,
        kernels={kind: replace(rates, l2=rates.l2 * scale) for kind, rates in gpu.kernels.items()},
        products={kind: replace(rates, l2=rates.l2 * scale) for kind, rates in gpu.products.items()},
    )


def with_floor(gpu: GpuProfile, timed: tuple[TimedLaunch, ...]) -> GpuProfile:
    """``gpu`` with the time of a kernel that does next to nothing."""
    tiny = [
        row.us
        for row in timed
        if isinstance(row.launch, Kernel)
        and row.launch.kind == "vectorized"
        and row.launch.nbytes <= _TINY_BYTES
    ]
    return msgspec.structs.replace(gpu, kernel_floor_us=round(statistics.median(tiny), 2)) if tiny else gpu


def note(gpu: GpuProfile, kinds: Mapping[str, KindFit], shipped: GpuProfile) -> str:
    """Which rates were measured, and where the others come from."""
    scaled = sorted(kind for kind in (*gpu.kernels, *gpu.products) if kind not in kinds)
    text = f"Rates of {len(kinds)} kinds of kernels fitted to {sum(fit.launches for fit in kinds.values())} timed launches."
    if not scaled:
        return text
    origin = (
        "measured on an H200" if shipped.key == "h200" else "scaled from an H200 by the datasheets' rates"
    )
    return f"{text} Not measured here but {origin}: {', '.join(scaled)}."
