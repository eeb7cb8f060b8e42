"""What pricing says of each call, split so that the page can slide the rates it was priced with.

Device time is taken apart in ``terms``. Host time up to the first launch is its layers, or, at another dispatch
time than the profile's, ``held + dispatches x dispatch_us`` in place of that layer; then ``launches x launch_us``. The
compiled program, where there is one, is told the same way, a step of it as a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, get_args

import numpy as np

from optrace.cost.device import peak_flops
from optrace.cost.host import dispatched_us, host_class
from optrace.cost.pricing import Costs, PricedGraph
from optrace.cost.work import MATRIX_KINDS, CostSource, KernelKind, Work
from optrace.diagnosis import Cures
from optrace.diagnosis.lesson import plain_counts
from optrace.graph.columns import Floats, Ints
from optrace.rendering.page.columns import Column, ColumnType, Packer
from optrace.rendering.page.terms import DeviceTerms, Knot, TermsModel
from optrace.rendering.scoreboard import main_math_dtype
from optrace.report import Report

SOURCES: tuple[CostSource, ...] = get_args(CostSource)
KINDS: tuple[KernelKind, ...] = get_args(KernelKind)

#: Bits of a call's flags.
UNPRICED, HOST_WAIT, UNKNOWN_FLOPS = 1, 2, 4


def device_terms(report: Report) -> list[DeviceTerms]:
    """The device time of each call, taken apart."""
    model, graph, costs = _model(report.priced), report.graph, report.costs
    return _by_device_time(
        costs, lambda call: model.of_call(graph[call], costs[call].work, costs[call].traffic)
    )


def fused_terms(report: Report, cures: Cures) -> list[DeviceTerms]:
    """The device time of each step of the compiled program, taken apart."""
    model, costs = _model(report.priced), cures.fused.costs

    def terms(number: int) -> DeviceTerms:
        step, cost = cures.fusion.steps[number], costs[number]
        if step.node is None:
            return model.of_region(cost.work, cost.traffic.read + cost.traffic.written)
        return model.of_call(step.node, cost.work, cost.traffic)

    return _by_device_time(costs, terms)


def _by_device_time(costs: Costs, terms: Callable[[int], DeviceTerms]) -> list[DeviceTerms]:
    """``terms`` of each call, asked for once of those whose device time is one."""
    _, first, of = np.unique(costs.device.of, return_index=True, return_inverse=True)
    found = [terms(call) for call in first.tolist()]
    return [found[row] for row in of.tolist()]


def _model(priced: PricedGraph) -> TermsModel:
    return TermsModel(priced.pricing.gpu, priced.pricing.target(priced.graph.info))


def prices(report: Report, pack: Packer, *, fused: bool) -> dict[str, Any]:
    """One pricing of a graph: the profile's rates, and columns of what each call costs. ``fused``: and of what each
    step of the compiled program would."""
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
        "graphReplayUs": max(1, report.graph.info.steps) * gpu.graph_replay_us,  # of all steps
        "graphLaunchUs": gpu.graph_launch_us,
        "memoryBytes": gpu.memory_bytes,
        "hostName": host.name,
        "hostMeasured": host.measured,
        "dispatchUs": host.dispatch_us,
        "launchUs": host.launch_us,
        "syncUs": host.sync_us,
        "tailUs": report.priced.tail_us,
        "synchronizeUs": host.synchronize_us,
        "queueDepth": host.queue_depth,
        "peakBytes": report.priced.memory.peak,
        "peakCall": report.priced.memory.peak_call,
        "baseBytes": report.priced.memory.base,
        "libraryBytes": report.priced.memory.library,
        "reservedBytes": report.priced.memory.reserved,
        "columns": _columns(report, pack),
        **({"fused": _fused(report, pack)} if fused and report.cures.fusion.steps else {}),
    }


#: How the page says it.
_TF32 = {"tf32": "float32 (TF32)"}


def _peaks(report: Report) -> list[dict[str, Any]]:
    """The roofs that the program's arithmetic runs under: FLOP/s by dtype and unit, lowest first."""
    gpu = report.pricing.gpu
    found: dict[str, float] = {}
    for work in report.costs.works.distinct:
        if work.flops:
            peak = peak_flops(work, gpu)
            if peak:
                unit = "matrix" if work.kind in MATRIX_KINDS else "vector"
                name = "float64" if "64" in work.math_dtype and "float" in work.math_dtype else "float32"
                dtype = name if unit == "vector" else _TF32.get(work.math_dtype, work.math_dtype)
                found.setdefault(f"{dtype} {unit}", peak)
    return [{"name": name, "flopS": peak} for name, peak in sorted(found.items(), key=lambda item: item[1])]


def _columns(report: Report, pack: Packer) -> dict[str, Any]:
    costs = report.costs
    plain = [plain_counts(work) for work in costs.works.distinct]
    return {
        **_costs(costs, device_terms(report), *_host_parts(report), pack),
        "plainKernels": pack.add("Uint8", costs.of_work(kernels for kernels, _ in plain)),
        "plainBytes": pack.add("Float64", costs.of_work(nbytes for _, nbytes in plain)),
    }


def _fused(report: Report, pack: Packer) -> dict[str, Any]:
    """The compiled program, and which calls each of its steps stands for."""
    cures = report.cures
    priced, steps = cures.fused, cures.fusion.steps
    # A step of generated code passes no dispatcher; a library call does once.
    held, dispatches = [], []
    for step in steps:
        without, once = (
            (0.0, 1.0) if step.node is None else _class_parts(report, step.node.facts.packet, step.work)
        )
        held.append(0.0 if step.region else without)
        dispatches.append(0.0 if step.region else once)
    ends: list[int] = []
    members: list[int] = []
    for step in steps:
        members += step.calls
        ends.append(len(members))
    return {
        "peakBytes": priced.memory.peak,
        "entryStep": list(cures.entries),
        "entryUs": list(cures.entries.values()),
        "stream": pack.add("Uint16", priced.graph.streams()),
        "memberEnd": pack.add("Uint32", ends),
        "member": pack.add("Uint32", members),
        "columns": _costs(priced.costs, fused_terms(report, cures), held, dispatches, pack),
    }


def _costs(
    costs: Costs,
    terms: Sequence[DeviceTerms],
    held: Iterable[float],
    dispatches: Iterable[float],
    pack: Packer,
) -> dict[str, Any]:
    def known(kind: ColumnType, column: Floats) -> Column:
        return pack.add(kind, np.nan_to_num(column))

    def by_work(kind: ColumnType, figure: Callable[[Work], float | None]) -> Column:
        return known(kind, costs.of_work(map(figure, costs.works.distinct)))

    return {
        "launches": known("Uint32", costs.launches),
        "flags": pack.add("Uint8", _flags(costs)),
        "kind": by_work("Uint8", lambda work: KINDS.index(work.kind)),
        "source": by_work("Uint8", lambda work: SOURCES.index(work.source)),
        "tensorBytes": by_work("Float64", lambda work: work.tensor_bytes),
        "hbmRead": known("Float64", costs.hbm_read),
        "hbmWritten": known("Float64", costs.hbm_written),
        "flops": by_work("Float64", lambda work: work.flops),
        **_device(terms, pack),
        "pythonUs": pack.add("Float64", costs.host.python_us),
        "autogradUs": pack.add("Float64", costs.host.autograd_us),
        "dispatchUs": pack.add("Float64", costs.host.dispatch_us),
        "heldDispatchUs": pack.add("Float64", held),
        "dispatches": pack.add("Float64", dispatches),
        "scratch": by_work("Float64", lambda work: sum(work.allocated)),
    }


def _device(terms: Sequence[DeviceTerms], pack: Packer) -> dict[str, Any]:
    """What adds, by call; then a row a launch that overlaps arithmetic and bytes, and each distinct arithmetic once."""
    rows = [overlap for term in terms for overlap in term.overlaps]
    ends, count = [], 0
    for term in terms:
        count += len(term.overlaps)
        ends.append(count)
    numbers: dict[tuple[Knot, ...], int] = {}
    of_row = [numbers.setdefault(row.computing, len(numbers)) for row in rows]
    knots = [knot for computing in numbers for knot in computing]
    knot_ends, count = [], 0
    for computing in numbers:
        count += len(computing)
        knot_ends.append(count)
    return {
        "fixedUs": pack.add("Float64", (term.fixed_us for term in terms)),
        "workUs": pack.add("Float64", (term.work_us for term in terms)),
        "hbmUs": pack.add("Float64", (term.hbm_us for term in terms)),
        "l2Us": pack.add("Float64", (term.l2_us for term in terms)),
        "overlapEnd": pack.add("Uint32", ends),
        "overlapFixedUs": pack.add("Float64", (row.fixed_us for row in rows)),
        "overlapHbmUs": pack.add("Float64", (row.hbm_us for row in rows)),
        "overlapL2Us": pack.add("Float64", (row.l2_us for row in rows)),
        "overlapProduct": pack.add("Uint8", (row.product for row in rows)),
        "overlapComputing": pack.add("Uint32", of_row),
        "knotEnd": pack.add("Uint32", knot_ends),
        "knotSlower": pack.add("Float64", (slower for slower, _ in knots)),
        "knotUs": pack.add("Float64", (us for _, us in knots)),
    }


def _flags(costs: Costs) -> Ints:
    uncounted = costs.of_work(work.flops is None for work in costs.works.distinct) > 0
    flags: Ints = (
        UNPRICED * np.isnan(costs.device_us) + HOST_WAIT * costs.host_wait + UNKNOWN_FLOPS * uncounted
    )
    return flags


def _host_parts(report: Report) -> tuple[Floats, Floats]:
    """The dispatch layer of each call at a dispatch time of zero, and how many dispatch times it takes besides: one
    time for all classes of calls, as where ``pricing`` is given one."""
    none, one = map(report.pricing.host.with_one_dispatch, (0.0, 1.0))
    works, graph = report.costs.works, report.graph
    held, dispatches = [], []
    for call, work in zip(works.first.tolist(), works.distinct, strict=True):
        tensors = len(graph.operands(call)), len(graph.outputs(call))
        without, with_one = (
            dispatched_us(graph.facts(call).packet, *tensors, work, host)[0] for host in (none, one)
        )
        held.append(without)
        dispatches.append(with_one - without)
    return report.costs.of_work(held), report.costs.of_work(dispatches)


def _class_parts(report: Report, packet: str, work: Work) -> tuple[float, float]:
    """The same of a library call of the compiled program."""
    kind = host_class(packet, work)
    without, with_one = (report.pricing.host.with_one_dispatch(us).dispatch_of(kind) for us in (0.0, 1.0))
    return without, with_one - without
