"""The scoreboard as data: what the terminal prints, the text report lists and the picture's legend shows.

Every time here is predicted and is written with ``~``; a total that leaves calls out is written
``12 + ?``, and ``missing_figures`` says whose figures they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from optrace import units
from optrace.cost.host import HostTime
from optrace.cost.peak import Holding
from optrace.cost.profiles import DEFAULT_HOST, MEASURED_KERNELS, gpu_profiles
from optrace.diagnosis import Bound
from optrace.rendering.sums import CostSum, costs_of, shared_bound
from optrace.report import Report, Total


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the scoreboard."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TopOp:
    """All calls of one overload together; ``share`` is their part of the wall clock, 0 to 1."""

    op: str
    cost: CostSum
    bound: Bound
    share: float


@dataclass(frozen=True, slots=True)
class TaxLayer:
    """A layer of the host's work in front of the kernels; ``share`` is its part of the tax, 0 to 1."""

    name: str
    us: float
    share: float
    meaning: str


@dataclass(frozen=True, slots=True)
class PeakStorage:
    """A storage alive at the peak of memory: its name or the call that made it, that call's module path and
    source line (empty where not known), and its part of the peak, 0 to 1."""

    name: str
    module: str
    line: str
    holding: Holding
    share: float

    @property
    def life(self) -> str:
        """When it was born and freed, in calls: ``%3 to %9``, ``from %3``, ``to %9``; ``all along``."""
        born, freed = self.holding.born, self.holding.freed
        if born is None:
            return "all along" if freed is None else f"to %{freed}"
        return f"from %{born}" if freed is None else f"%{born} to %{freed}"


_HOST_LAYERS = tuple(item.name for item in fields(HostTime))

_TAX_LAYERS: tuple[tuple[str, Callable[[HostTime], float], str], ...] = (
    ("Python", lambda host: host.python_us, "interpreter and module calls between two ops"),
    ("autograd", lambda host: host.autograd_us, "recording the graph, walking it backward"),
    ("dispatch", lambda host: host.dispatch_us, "dispatcher, shape checks, allocation"),
    ("launch", lambda host: host.launch_us, "handing kernels to the driver"),
)


def scoreboard_rows(report: Report) -> tuple[Row, ...]:
    """The figures that keep score, most important first; of a run that leaves the GPU alone only what is known of it."""
    return tuple(make(report) for make in (_IDLE_ROWS if report.verdict.idle else _ROWS))


def verdict_line(report: Report) -> str:
    """The verdict in one sentence."""
    if not len(report.graph):
        return "nothing was dispatched"
    return report.verdict.sentence


def tax_layers(report: Report) -> tuple[TaxLayer, ...]:
    """The host's time in its four layers."""
    total = HostTime(*(sum(getattr(report.costs.host, name).tolist()) for name in _HOST_LAYERS))
    return tuple(
        TaxLayer(name, layer(total), layer(total) / total.total_us if total.total_us else 0.0, meaning)
        for name, layer, meaning in _TAX_LAYERS
    )


def top_ops(report: Report, n: int) -> tuple[TopOp, ...]:
    """The ``n`` overloads with the largest share of the wall clock."""
    calls: dict[str, list[int]] = defaultdict(list)
    for call in range(len(report.graph)):
        calls[report.graph.facts(call).name].append(call)
    costs = {op: costs_of(report, numbers) for op, numbers in calls.items()}
    wall = report.timeline.wall_us
    ranked = sorted(costs, key=lambda op: (-costs[op].wall_us, -costs[op].host.total_us, op))
    return tuple(
        TopOp(
            op,
            costs[op],
            shared_bound((report.bounds[call] for call in calls[op]), costs[op]),
            costs[op].wall_us / wall if wall else 0.0,
        )
        for op in ranked[:n]
    )


def peak_storages(report: Report, n: int) -> tuple[PeakStorage, ...]:
    """The ``n`` largest storages that are alive when most memory is allocated."""
    return tuple(_peak_storage(report, holding) for holding in report.peak.holdings[:n])


def _peak_storage(report: Report, holding: Holding) -> PeakStorage:
    graph, memory = report.graph, report.priced.memory
    name = graph.storages[holding.storage].name
    if holding.born is None:
        name, module, line = name or "stood before the first call", "", ""
    else:
        call, source = graph.module_call(holding.born), graph.source(holding.born).line
        made = f"%{holding.born} {graph.facts(holding.born).name}"
        name = f"{name} of {made}" if name else made
        module, line = call.path if call else "", str(source) if source else ""
    return PeakStorage(name, module, line, holding, holding.nbytes / memory.peak)


def missing_figures(report: Report) -> tuple[str, ...]:
    """What is not in the figures above: calls that were not recorded, figures that are not known."""
    lines = incomplete_lines(report)
    ops: dict[str, list[str]] = {}
    for name, total in report.totals.items():
        if not total.complete:
            calls = ", ".join(f"{op} x{calls}" for op, calls in sorted(total.missing.items()))
            ops.setdefault(calls, []).append(name)
    lines.extend(f"{', '.join(names)}: not known for {calls}" for calls, names in ops.items())
    return tuple(lines)


def incomplete_lines(report: Report) -> list[str]:
    """Why the record is not the whole run, or not surely the run."""
    return [
        f"the record rests on a {reason}"
        if reason.startswith("guess: ")
        else f"the record is incomplete: {reason}"
        for reason in report.graph.info.incomplete
    ]


def provenance(report: Report) -> tuple[str, ...]:
    """What the times rest on: predicted, for which machine, from measured or published numbers."""
    gpu, host, overrides = report.pricing.gpu, report.pricing.host, report.pricing.overrides
    lines = [
        f"All times (~) are predicted for {gpu.name}, {_basis(gpu.measured, gpu.source)}.",
        f"Host times: {host.name}, {_basis(host.measured, host.source)}.",
    ]
    if host.key == DEFAULT_HOST:
        lines.append(
            "Another host may be twice as fast or as slow: `optrace calibrate --save` beside a GPU measures yours."
        )
    if not gpu.kernels:
        base = gpu_profiles()[MEASURED_KERNELS]
        lines.insert(
            1, f"Kernel rates were measured on {base.name} and are scaled to this GPU by both datasheets."
        )
    if overrides:
        lines.append(f"Set by hand: {', '.join(overrides)}.")
    return tuple(lines)


def _basis(measured: bool, source: str) -> str:
    return f"rates {'measured' if measured else 'not measured'} ({source})"


def partial(total: Total, shown: str) -> str:
    """``12 + ?`` for a sum that leaves calls out, and ``?`` where it leaves out all there is."""
    return at_least(shown, total.complete) if total.value or total.complete else units.UNKNOWN


def at_least(shown: str, complete: bool) -> str:
    """``12 + ?`` where something is left out."""
    return shown if complete else f"{shown} + {units.UNKNOWN}"


def _launches(report: Report) -> Row:
    totals = report.totals
    parts = [
        units.counted(totals["kernels"].value, "kernel"),
        units.counted(totals["memcpys"].value, "copy", "copies"),
        units.counted(totals["memsets"].value, "memset"),
    ]
    launches = totals["launches"]
    detail = f"{', '.join(parts)}; {units.counted(len(report.graph), 'call')}"
    if report.graph.info.steps > 1:
        detail += f", {report.graph.info.steps} steps"
    return Row("launches", partial(launches, units.count(launches.value)), detail)


def _hbm(report: Report) -> Row:
    read, written, held = (report.totals[name] for name in ("hbm_read", "hbm_written", "tensor_bytes"))
    # Traffic of a call whose launches are not known is not counted, whatever its tensors hold.
    complete = report.totals["hbm_bytes"].complete
    moved = read.value + written.value
    parts = f"{units.moved(read.value)} read, {units.moved(written.value)} written"
    if complete and held.value and not moved:
        parts = f"all of it stays in the L2 of {units.allocated(report.pricing.gpu.l2_bytes)}"
    return Row(
        "HBM traffic",
        at_least(units.moved(moved), complete),
        f"{parts}; the tensors touched hold {units.moved(held.value)}",
    )


def _peak_memory(report: Report) -> Row:
    memory = report.priced.memory
    detail = f"{memory_verdict(report)}; {units.allocated(memory.base)} before the first call"
    if memory.peak_call >= 0:
        detail += f"; reached at %{memory.peak_call} {report.graph.facts(memory.peak_call).name}"
    return Row("peak memory", units.allocated(memory.peak), detail)


def memory_verdict(report: Report) -> str:
    """Whether the run fits into the GPU's memory."""
    memory, room = report.priced.memory, units.allocated(report.pricing.gpu.memory_bytes)
    reserved = f"{units.allocated(memory.reserved)} reserved"
    if report.fits:
        return f"fits in {room}: {reserved}"
    if report.fits is None:
        return f"may not fit in {room}: {reserved} with what is free between blocks"
    return f"does not fit in {room}"


def _memory_shares(report: Report) -> Row:
    peak = report.peak
    total = sum(peak.shares.values())
    shares = ", ".join(f"{use} {units.share(nbytes / total)}" for use, nbytes in peak.shares.items())
    return Row("  at the peak", units.counted(len(peak.holdings), "storage"), shares)


def _wall(report: Report) -> Row:
    verdict, timeline = report.verdict, report.timeline
    parts = [
        f"{name} {units.share(us / timeline.wall_us)}"
        for name, us in (
            ("launch gaps", verdict.launch_us),
            ("memory", verdict.memory_us),
            ("compute", verdict.compute_us),
            ("sync", verdict.sync_us),
            ("host tail", verdict.host_tail_us),
        )
        if us
    ]
    wall = at_least(units.predicted_us(timeline.wall_us), report.totals["device_us"].complete)
    return Row("wall clock", wall, ", ".join(parts))


def _pace(report: Report) -> Row:
    busy = report.gpu_busy_share
    return Row(
        "back to back",
        at_least(units.predicted_us(report.timeline.b2b_us), report.totals["device_us"].complete),
        f"a run, many in a row; GPU busy {units.UNKNOWN if busy is None else units.share(busy)} of one",
    )


def _launch_ceiling(report: Report) -> Row:
    tax = report.totals["host_us"].value
    layers = ", ".join(f"{layer.name} {units.predicted_us(layer.us)}" for layer in tax_layers(report))
    return Row("launch ceiling", units.predicted_us(tax), f"host tax: {layers}")


def _bandwidth_ceiling(report: Report) -> Row:
    totals, gpu = report.totals, report.pricing.gpu
    nbytes = totals["hbm_read"].value + totals["hbm_written"].value
    us = nbytes / (gpu.bandwidth_tb_s * 1e6)
    return Row(
        "bandwidth ceiling",
        at_least(units.predicted_us(us), totals["hbm_bytes"].complete),
        f"HBM traffic at {units.byte_rate(gpu.bandwidth_tb_s)}",
    )


def _ridge_point(report: Report) -> Row:
    dtype = main_math_dtype(report)
    gpu = report.pricing.gpu
    totals = report.totals
    nbytes = totals["hbm_read"].value + totals["hbm_written"].value
    flops = totals["flops"]
    mine = partial(flops, units.intensity(flops.value / nbytes)) if nbytes else "has no HBM traffic"
    return Row(
        "ridge point",
        units.intensity(gpu.ridge_point(dtype)),
        f"{units.dtype(dtype)}: {units.flop_rate(gpu.peak_flops(dtype, matmul=True))} over "
        f"{units.byte_rate(gpu.bandwidth_tb_s)}; this program {mine}",
    )


def _flops(report: Report) -> Row:
    flops, matmul = report.totals["flops"], report.totals["matmul_flops"]
    return Row(
        "arithmetic",
        partial(flops, units.flop(flops.value)),
        f"{partial(matmul, units.flop(matmul.value))} in matmuls",
    )


def _flops_only(report: Report) -> Row:
    mfu, hbm = report.mfu, report.hbm_utilization
    return Row(
        "FLOPs at peak",
        at_least(units.predicted_us(report.flops_only_us), report.totals["matmul_flops"].complete),
        f"the estimate that knows only FLOPs; MFU {units.UNKNOWN if mfu is None else units.share(mfu)}, "
        f"HBM utilization {units.UNKNOWN if hbm is None else units.share(hbm)}",
    )


def _lesson(report: Report) -> Row:
    plain = report.lesson
    return Row(
        "plain sum",
        units.predicted_us(plain.tax_us + plain.traffic_us),
        f"{units.counted(plain.kernels, 'kernel')} {units.predicted_us(plain.tax_us)} of tax + "
        f"{units.moved(plain.bytes)} {units.predicted_us(plain.traffic_us)} of traffic: {plain.ceiling}",
    )


_ROWS: tuple[Callable[[Report], Row], ...] = (
    _launches,
    _hbm,
    _peak_memory,
    _memory_shares,
    _wall,
    _pace,
    _launch_ceiling,
    _bandwidth_ceiling,
    _ridge_point,
    _flops,
    _flops_only,
    _lesson,
)


_IDLE_ROWS = (_launches, _flops)


def main_math_dtype(report: Report) -> str:
    """The dtype that most matmul arithmetic is done in: the one whose ridge point matters."""
    flops: dict[str, int] = defaultdict(int)
    works = report.costs.works
    for work, calls in zip(works.distinct, np.bincount(works.of).tolist(), strict=True):
        flops[work.math_dtype] += calls * (work.matmul_flops or 0)
    known = [dtype for dtype in flops if flops[dtype] and report.pricing.gpu.peak_flops(dtype, matmul=True)]
    return max(known, key=lambda dtype: flops[dtype], default="bfloat16")
