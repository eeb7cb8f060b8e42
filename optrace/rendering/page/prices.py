"""What pricing says of each call, split so that the page can slide the rates it was priced with.

A call's device time is ``fixed + max(HBM, L2, math)``: HBM time goes with one over the bandwidth, math time with
one over the peak. Its host time is ``held + dispatches x dispatch_us`` before the first launch, then
``launches x launch_us``. Each part is asked of the cost model itself, at rates without limit or without cost,
so that the model stands in one place; ``tests/page`` holds that the parts make up the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from optrace.cost.device import device_time, peak_flops
from optrace.cost.host import host_time
from optrace.cost.pricing import OpCost, PricedGraph
from optrace.cost.profiles import GpuProfile
from optrace.cost.work import MATRIX_KINDS, CostSource, KernelKind
from optrace.diagnosis import lesson
from optrace.rendering.page.columns import Packer
from optrace.rendering.scoreboard import main_math_dtype
from optrace.report import Report

#: A rate that costs nothing.
_FREE = 1e30


@dataclass(frozen=True, slots=True)
class DeviceTerms:
    """The parts of a call's device time, microseconds; ``fixed_us + max(hbm_us, l2_us, math_us)`` is the whole."""

    fixed_us: float = 0.0
    hbm_us: float = 0.0
    l2_us: float = 0.0
    math_us: float = 0.0


def device_terms(cost: OpCost, gpu: GpuProfile) -> DeviceTerms:
    """Device time by what it goes with; nothing where it is not known or nothing is launched."""
    return _Rates(gpu).terms(cost)


class _Rates:
    """A GPU with all rates but one without limit."""

    def __init__(self, gpu: GpuProfile) -> None:
        free_math = dict.fromkeys(gpu.peak_tflops, _FREE)
        free = msgspec.structs.replace(
            gpu, bandwidth_tb_s=_FREE, l2_bandwidth_tb_s=_FREE, peak_tflops=free_math
        )
        self._fixed = free
        self._hbm = msgspec.structs.replace(free, bandwidth_tb_s=gpu.bandwidth_tb_s)
        self._l2 = msgspec.structs.replace(free, l2_bandwidth_tb_s=gpu.l2_bandwidth_tb_s)
        self._math = msgspec.structs.replace(free, peak_tflops=gpu.peak_tflops)

    def terms(self, cost: OpCost) -> DeviceTerms:
        if cost.device is None or not cost.launches:
            return DeviceTerms()
        fixed = self._us(cost, self._fixed)
        return DeviceTerms(
            fixed,
            self._us(cost, self._hbm) - fixed,
            self._us(cost, self._l2) - fixed,
            self._us(cost, self._math) - fixed,
        )

    @staticmethod
    def _us(cost: OpCost, gpu: GpuProfile) -> float:
        time = device_time(cost.work, cost.hbm_bytes or 0, gpu)
        assert time is not None
        return time.us


def prices(report: Report, pack: Packer) -> dict[str, Any]:
    """One pricing of a graph: the profile's rates, and columns of what each call costs."""
    gpu, host = report.pricing.gpu, report.pricing.host
    main_dtype = main_math_dtype(report)
    return {
        "gpu": gpu.key,
        "gpuName": gpu.name,
        "gpuMeasured": gpu.measured,
        "l2Bytes": gpu.l2_bytes,
        "bandwidthTbS": gpu.bandwidth_tb_s,
        "l2BandwidthTbS": gpu.l2_bandwidth_tb_s,
        "mathDtype": main_dtype,
        "peaks": _peaks(report),
        "graphReplayUs": gpu.graph_replay_us,
        "graphLaunchUs": gpu.graph_launch_us,
        "memoryBytes": gpu.memory_bytes,
        "hostName": host.name,
        "hostMeasured": host.measured,
        "dispatchUs": host.dispatch_us,
        "launchUs": host.launch_us,
        "syncUs": host.sync_us,
        "queueDepth": host.queue_depth,
        "peakBytes": report.priced.memory.peak,
        "peakCall": report.priced.memory.peak_call,
        "baseBytes": report.priced.memory.base,
        "libraryBytes": report.priced.memory.library,
        "reservedBytes": report.priced.memory.reserved,
        "columns": _columns(report, pack),
    }


def _peaks(report: Report) -> list[dict[str, Any]]:
    """The roofs that the program's arithmetic runs under: FLOP/s by dtype and unit, lowest first."""
    gpu = report.pricing.gpu
    found: dict[str, float] = {}
    for cost in report.costs:
        if cost.work.flops:
            peak = peak_flops(cost.work, gpu)
            if peak:
                unit = "matrix" if cost.work.kind in MATRIX_KINDS else "vector"
                tf32 = (
                    " (TF32)" if cost.work.kind == "convolution" and cost.work.math_dtype == "float32" else ""
                )
                name = (
                    "float64"
                    if "64" in cost.work.math_dtype and "float" in cost.work.math_dtype
                    else "float32"
                )
                dtype = cost.work.math_dtype if unit == "matrix" else name
                found.setdefault(f"{dtype}{tf32} {unit}", peak)
    return [{"name": name, "flopS": peak} for name, peak in sorted(found.items(), key=lambda item: item[1])]


def _columns(report: Report, pack: Packer) -> dict[str, Any]:
    costs = report.costs
    rates = _Rates(report.pricing.gpu)
    terms = [rates.terms(cost) for cost in costs]
    held, dispatches = _host_parts(report)
    plain = [_lesson_of(report, cost) for cost in costs]

    def column(kind: Any, figure: Callable[[OpCost], float | None]) -> Any:
        return pack.add(kind, (figure(cost) or 0 for cost in costs))

    return {
        "launches": column("Uint32", lambda cost: cost.launches),
        "memcpys": column("Uint32", lambda cost: cost.work.memcpys),
        "memsets": column("Uint32", lambda cost: cost.work.memsets),
        "flags": pack.add("Uint8", (_flags(cost) for cost in costs)),
        "kind": pack.add("Uint8", (KINDS.index(cost.work.kind) for cost in costs)),
        "source": pack.add("Uint8", (SOURCES.index(cost.source) for cost in costs)),
        "tensorBytes": column("Float64", lambda cost: cost.work.tensor_bytes),
        "hbmRead": column("Float64", lambda cost: cost.hbm_read),
        "hbmWritten": column("Float64", lambda cost: cost.hbm_written),
        "flops": column("Float64", lambda cost: cost.work.flops),
        "matmulFlops": column("Float64", lambda cost: cost.work.matmul_flops),
        "fixedUs": pack.add("Float64", (term.fixed_us for term in terms)),
        "hbmUs": pack.add("Float64", (term.hbm_us for term in terms)),
        "l2Us": pack.add("Float64", (term.l2_us for term in terms)),
        "mathUs": pack.add("Float64", (term.math_us for term in terms)),
        "pythonUs": column("Float32", lambda cost: cost.host.python_us),
        "autogradUs": column("Float32", lambda cost: cost.host.autograd_us),
        "heldDispatchUs": pack.add("Float64", held),
        "dispatches": pack.add("Float32", dispatches),
        "scratch": column("Float64", lambda cost: sum(cost.work.allocated)),
        "plainKernels": pack.add("Uint8", (kernels for kernels, _ in plain)),
        "plainBytes": pack.add("Float64", (nbytes for _, nbytes in plain)),
    }


SOURCES: tuple[CostSource, ...] = get_args(CostSource)
KINDS: tuple[KernelKind, ...] = get_args(KernelKind)

#: Bits of a call's flags.
UNPRICED, HOST_WAIT, UNKNOWN_FLOPS = 1, 2, 4


def _flags(cost: OpCost) -> int:
    return (
        UNPRICED * (cost.device is None)
        + HOST_WAIT * cost.work.host_wait
        + UNKNOWN_FLOPS * (cost.work.flops is None)
    )


def _host_parts(report: Report) -> tuple[list[float], list[float]]:
    """The dispatch layer of each call at a dispatch time of zero, and how many dispatch times it takes besides."""
    none = msgspec.structs.replace(report.pricing.host, dispatch_us=0.0)
    one = msgspec.structs.replace(report.pricing.host, dispatch_us=1.0)
    held, dispatches = [], []
    for node, cost in zip(report.graph, report.costs, strict=True):
        without = host_time(node, cost.work, none).dispatch_us
        held.append(without)
        dispatches.append(host_time(node, cost.work, one).dispatch_us - without)
    return held, dispatches


def _lesson_of(report: Report, cost: OpCost) -> tuple[int, int]:
    """The plain sum's kernels and bytes of one call."""
    alone = lesson(PricedGraph(report.graph, report.pricing, (cost,), report.priced.memory))
    return alone.kernels, alone.bytes


def launching_kinds(costs: Iterable[OpCost]) -> list[tuple[int, str]]:
    """Calls that launch something, with the kind of their kernels."""
    return [(call, cost.work.kind) for call, cost in enumerate(costs) if cost.launches]
