"""Calls and launches on one time axis, predicted or measured: what a timeline is drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optrace.cost.device import launches_of
from optrace.cost.profiles import Target
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


def predicted(report: Report) -> Clock:
    """As the queue replays the run. A call's Python belongs to the time before it."""
    target = report.pricing.target(report.graph.info)
    names: dict[int, list[tuple[LaunchKind, str]]] = {}
    copied: dict[int, list[int]] = {}
    bars: list[Bar] = []
    for launch in launches(report.priced):
        call = launch.task
        if call not in names:
            names[call] = _names(report, call, report.graph[call], target)[::-1]
            copied[call] = _copied(report.costs[call].work)[::-1]
        kind, name = names[call].pop()
        nbytes = copied[call].pop() if kind == "memcpy" and copied[call] else None
        stream = report.graph.stream(call)
        bars.append(Bar(call, kind, name, stream, launch.start_us, launch.end_us, launch.issued_us, nbytes))
    host = [
        (span.host_start_us + cost.host.python_us, span.host_end_us)
        for span, cost in zip(report.timeline.spans, report.costs, strict=True)
    ]
    return Clock(host, bars, report.pricing.host.launch_us, report.timeline.wall_us)


def measured(run: MeasuredRun) -> Clock:
    """As a profiler saw the run."""
    bars = [
        Bar(b.call, b.kind, b.name, b.stream, b.start_us, b.end_us, b.issued_us, b.nbytes)
        for b in sorted(run.launches, key=lambda b: b.start_us if b.issued_us is None else b.issued_us)
    ]
    return Clock(run.host_us, bars, 0.0, run.wall_us)


def _names(report: Report, call: int, node: OpNode, target: Target) -> list[tuple[LaunchKind, str]]:
    """What each launch of a call is, in order: by the device model's list, where it accounts for all of them."""
    work = report.costs[call].work
    listed = [launch.kind for launch in launches_of(node, work, target) for _ in range(launch.count)]
    if len(listed) != work.launches or listed.count("memcpy") != work.memcpys:
        copies = ["memset"] * work.memsets + ["memcpy"] * work.memcpys
        listed = [work.kind] * (work.kernels or 0) + copies
    return [(_ENGINES.get(kind, "kernel"), _shown(node, kind)) for kind in listed]


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
