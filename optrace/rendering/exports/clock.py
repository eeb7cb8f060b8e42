"""Calls and launches on one time axis, predicted or measured: what a timeline is drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optrace.cost.device import DeviceModel
from optrace.cost.work import Operand, Work
from optrace.graph import OpNode, TensorMeta
from optrace.graph.measured import LaunchKind, MeasuredRun
from optrace.report import Report
from optrace.timeline import launches

_ENGINES: dict[str, LaunchKind] = {"memcpy": "memcpy", "memset": "memset"}


@dataclass(frozen=True, slots=True)
class Bar:
    """A launch on its stream, microseconds; ``issued_us`` None where that is not known, ``nbytes`` (of a copy or a
    fill) too."""

    call: int
    kind: LaunchKind
    name: str
    stream: int
    start_us: float
    end_us: float
    issued_us: float | None
    nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class Clock:
    """``host[call]`` is when the host was in a call (None: not known), ``issue_us`` what handing over one launch takes
    it, ``bars`` the launches in the order in which they were issued."""

    host: Sequence[tuple[float, float] | None]
    bars: Sequence[Bar]
    issue_us: float
    wall_us: float


@dataclass(frozen=True, slots=True)
class _Part:
    """A launch of a call, and what it takes of the call's device time."""

    kind: LaunchKind
    name: str
    us: float
    nbytes: int | None


def predicted(report: Report) -> Clock:
    """As the queue replays the run, with each launch as long as the device model says: the queue spreads a call's time
    evenly over its launches, and so a run may end here by a launch's length later. A call's Python belongs to the
    time before it."""
    model = DeviceModel(report.pricing.gpu, report.pricing.target(report.graph.info))
    parts: dict[int, list[_Part]] = {}
    bars: list[Bar] = []
    free_us: dict[int, float] = {}
    for launch in launches(report.priced):
        call = launch.task
        if call not in parts:
            parts[call] = _parts(report, call, model)[::-1]
        part, stream = parts[call].pop(), report.graph.stream(call)
        start_us = max(launch.issued_us, free_us.get(stream, 0.0))
        free_us[stream] = start_us + part.us
        bars.append(
            Bar(call, part.kind, part.name, stream, start_us, free_us[stream], launch.issued_us, part.nbytes)
        )
    host = [
        (span.host_start_us + cost.host.python_us, span.host_end_us)
        for span, cost in zip(report.timeline.spans, report.costs, strict=True)
    ]
    wall_us = max([report.timeline.wall_us, *free_us.values()])
    return Clock(host, bars, report.pricing.host.launch_us, wall_us)


def measured(run: MeasuredRun) -> Clock:
    """As a profiler saw the run."""
    bars = [
        Bar(b.call, b.kind, b.name, b.stream, b.start_us, b.end_us, b.issued_us, b.nbytes)
        for b in sorted(run.launches, key=lambda b: b.start_us if b.issued_us is None else b.issued_us)
    ]
    return Clock(run.host_us, bars, 0.0, run.wall_us)


def _parts(report: Report, call: int, model: DeviceModel) -> list[_Part]:
    """A call's launches in order: by the device model's list, where it accounts for all of them; else alike."""
    node, cost = report.graph[call], report.costs[call]
    work, device_us = cost.work, cost.device_us or 0.0
    listed = [
        (launch.kind, us / launch.count)
        for launch, us, _ in model.launch_times(node, work, cost.traffic)
        for _ in range(launch.count)
    ]
    kinds = [kind for kind, _ in listed]
    if len(listed) != work.launches or kinds.count("memcpy") != work.memcpys:
        copies = ["memset"] * work.memsets + ["memcpy"] * work.memcpys
        listed = [(kind, 1.0) for kind in [work.kind] * (work.kernels or 0) + copies]
    whole = sum(us for _, us in listed) or 1.0
    copied = iter(_copied(work))
    return [
        _Part(
            _ENGINES.get(kind, "kernel"),
            _shown(node, kind),
            device_us * us / whole,
            next(copied, None) if kind == "memcpy" else None,
        )
        for kind, us in listed
    ]


def _copied(work: Work) -> list[int]:
    """What each copy of a call moves, in order; nothing where its rule does not say which copy moves what."""
    if work.launches == work.memcpys == 1:
        return [max(sum(access.nbytes for access in side) for side in (work.reads, work.writes))]
    found = [
        max(sum(_size(work, operand) for operand in side) for side in (one.reads, one.writes))
        for one in work.passes
        if one.is_copy
        for _ in range(one.times)
    ]
    return found if len(found) == work.memcpys else []


def _size(work: Work, operand: Operand) -> int:
    return work.scratch[operand] if isinstance(operand, int) else operand.nbytes


def _shown(node: OpNode, kind: str) -> str:
    """A launch's name. Copies and fills are named as CUPTI names them, which is what readers tell them by."""
    if kind == "memset":
        return f"Memset (Device) {node.label}"
    if kind == "memcpy":
        ends = ["Host" if _is_host(tensors) else "Device" for tensors in (node.inputs[-1:], node.outputs[:1])]
        return f"Memcpy {ends[0][0]}to{ends[1][0]} ({ends[0]} -> {ends[1]}) {node.label}"
    return f"{node.label} [{kind}]"


def _is_host(tensors: Sequence[TensorMeta]) -> bool:
    """The CPU's memory, or a Python number."""
    return not tensors or tensors[0].device == "cpu"
