"""The timeline for Perfetto, chrome://tracing and HolisticTraceAnalysis, in the event names that torch's profiler uses.

On the host's thread: phases, modules, calls (``cpu_op``) and the driver calls that launch (``cuda_runtime``); on each
stream of the device: kernels, copies and fills, each with an arrow from its launch; counters for memory, launches
waiting and HBM traffic. The simulated run; the measured one where a profiler saw it. Format: "Trace Event Format"
(Google), as libkineto's ``output_json.cpp`` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import msgspec

from optrace.graph import OpGraph, OpNode, TensorMeta, Value
from optrace.graph.foreign import cpp_dtype
from optrace.rendering.exports.clock import Bar, Clock, measured, predicted
from optrace.rendering.options import DrawOptions, Rendered
from optrace.rendering.places import PHASE_NAMES
from optrace.report import Report

#: The host's process and thread. The device's process is number 0, as in torch's traces.
_HOST, _THREAD = 1000, 1000
_DEVICE = 0

#: torch shows the default stream as 7.
_FIRST_STREAM = 7

_LAUNCH_CALL = {"kernel": "cudaLaunchKernel", "memcpy": "cudaMemcpyAsync", "memset": "cudaMemsetAsync"}
_CATEGORY = {"kernel": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}

Event = dict[str, Any]


def render(report: Report, options: DrawOptions) -> Rendered:
    """JSON, a line an event."""
    view = options.measured
    if view is not None and view.run is not None:
        clock, said, name = measured(view.run), f"measured on {view.device}", view.device
    else:
        clock, said = predicted(report), f"predicted by optrace for {report.pricing.gpu.name}"
        name = report.pricing.gpu.name
    events = [
        *_names(said, sorted({bar.stream for bar in clock.bars})),
        *_steps(report.graph, clock),
        *_enclosing(report.graph, clock),
        *_calls(report, clock),
        *_launches(report, clock),
        *_counters(report, clock),
    ]
    gpu = report.pricing.gpu
    head = {
        "schemaVersion": 1,
        "displayTimeUnit": "ns",
        "traceName": report.graph.info.program,
        "optrace": said,
        "record_shapes": 1,
        "deviceProperties": [
            {
                "id": _DEVICE,
                "name": name,
                "totalGlobalMem": gpu.memory_bytes,
                "computeMajor": gpu.capability[0],
                "computeMinor": gpu.capability[1],
                "numSms": gpu.sm_count,
            }
        ],
    }
    encode = msgspec.json.encode
    lines = b",\n".join(encode(event) for event in events)
    return Rendered(encode(head)[:-1] + b',"traceEvents":[\n' + lines + b"\n]}\n")


def _names(said: str, streams: Sequence[int]) -> Iterator[Event]:
    for process, name, order in ((_HOST, "host", 0), (_DEVICE, "GPU 0", 1)):
        yield _meta("process_name", process, 0, {"name": name})
        yield _meta("process_labels", process, 0, {"labels": said})
        yield _meta("process_sort_index", process, 0, {"sort_index": order})
    yield _meta("thread_name", _HOST, _THREAD, {"name": "Python"})
    for stream in streams:
        yield _meta(
            "thread_name", _DEVICE, _FIRST_STREAM + stream, {"name": f"stream {_FIRST_STREAM + stream}"}
        )


def _meta(name: str, process: int, thread: int, what: Event) -> Event:
    return {"name": name, "ph": "M", "ts": 0, "pid": process, "tid": thread, "args": what}


def _slice(
    category: str, name: str, start: float, end: float, what: Event, pid: int = _HOST, tid: int = _THREAD
) -> Event:
    begin = _us(start)
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": begin,
        # Of the rounded ends: what begins where another ends does not overlap it.
        "dur": _us(max(0.0, _us(end) - begin)),
        "args": what,
    }


def _us(value: float) -> float:
    """To the nanosecond, as profilers have it."""
    return round(value, 3)


def _steps(graph: OpGraph, clock: Clock) -> Iterator[Event]:
    """Each step, under the name by which readers find them: on the host, until the next begins."""
    starts = [0.0]
    for call in graph.step_starts()[1:]:
        inside = (clock.host[number] for number in range(call, len(clock.host)))
        entered = next((one for one in inside if one is not None), None)
        if entered is not None:
            starts.append(entered[0])
    for number, (start, end) in enumerate(pairwise([*starts, clock.wall_us])):
        yield _slice("user_annotation", f"ProfilerStep#{number}", start, end, {})


@dataclass(slots=True)
class _Around:
    """A phase or module that calls stand in; ``call`` is None of a module that was only seen from within others."""

    path: tuple[str, ...]
    name: str
    call: int | None
    start_us: float = 0.0

    def goes_on(self, other: _Around) -> bool:
        """``other`` is the same, as far as can be told."""
        same = self.call is None or other.call is None or self.call == other.call
        return self.path == other.path and same


def _enclosing(graph: OpGraph, clock: Clock) -> Iterator[Event]:
    """Phases and modules: a slice from the first to the last of the calls that stand inside one after the other."""
    phases = len({graph.phase(call) for call in range(len(graph))}) > 1
    classes = {call.path: call.cls for call in graph.module_calls.rows}
    opened: list[_Around] = []
    until = 0.0
    for call in range(len(graph)):
        inside = clock.host[call]
        if inside is None:
            continue
        around = list(_around(graph, call, classes, phases))
        shared = 0
        while shared < min(len(opened), len(around)) and opened[shared].goes_on(around[shared]):
            opened[shared].call = opened[shared].call or around[shared].call
            shared += 1
        while len(opened) > shared:
            yield _enclosed(opened.pop(), until)
        for entered in around[shared:]:
            entered.start_us = inside[0]
            opened.append(entered)
        until = inside[1]
    while opened:
        yield _enclosed(opened.pop(), until)


def _around(graph: OpGraph, call: int, classes: Mapping[str, str], phases: bool) -> Iterator[_Around]:
    """What a call stands in, outermost first."""
    phase = PHASE_NAMES[graph.phase(call)]
    if phases:
        yield _Around((phase,), phase, None)
    module = graph.module_call(call)
    parts = () if module is None else tuple(module.path.split("."))
    for depth, part in enumerate(parts, start=1):
        path = ".".join(parts[:depth])
        cls = classes.get(path, "")
        own = module.call if module is not None and depth == len(parts) else None
        yield _Around((phase, *parts[:depth]), f"{part} ({cls})" if cls and cls != part else part, own)


def _enclosed(opened: _Around, end: float) -> Event:
    return _slice("user_annotation", opened.name, opened.start_us, end, {"path": ".".join(opened.path)})


def _calls(report: Report, clock: Clock) -> Iterator[Event]:
    for call, node in enumerate(report.graph):
        inside = clock.host[call]
        if inside is None:
            continue
        cost, span = report.costs[call], report.timeline.spans[call]
        said = {
            "External id": call + 1,
            **_arguments(node),
            "overload": node.op,
            "source": None if node.source.line is None else str(node.source.line),
            "bound": report.bounds[call],
            "launches": cost.launches,
            "hbm_bytes": cost.hbm_bytes,
            "flops": cost.work.flops,
            "cost_source": cost.source,
            "predicted_device_us": None if cost.device_us is None else _us(cost.device_us),
            "predicted_gap_us": _us(span.gap_us),
            "predicted_wall_us": _us(span.wall_us),
        }
        known = {name: value for name, value in said.items() if value is not None}
        yield _slice("cpu_op", node.facts.packet.replace(".", "::"), *inside, known)


def _arguments(node: OpNode) -> Event:
    """The arguments that were given, in the schema's order, as ``record_shapes`` has them."""
    named = dict(zip(node.facts.arg_names, node.args, strict=False)) | dict(node.kwargs)
    given = [named[name] for name in node.facts.arg_names if name in named] or list(node.args)
    columns = zip(*map(_argument, given), strict=True)
    return dict(zip(("Input type", "Input Dims", "Input Strides", "Concrete Inputs"), columns, strict=False))


def _argument(value: Value) -> tuple[str, Sequence[Any], Sequence[Any], str]:
    """Type, shape, strides and value (of a tensor none): dtypes, layouts and devices are left out."""
    if isinstance(value, TensorMeta):
        return cpp_dtype(value.dtype), value.shape, value.stride, ""
    if isinstance(value, tuple):
        tensors = [item for item in value if isinstance(item, TensorMeta)]
        if tensors and len(tensors) == len(value):
            return "TensorList", [one.shape for one in tensors], [one.stride for one in tensors], ""
        if value and all(isinstance(item, bool | int | float) for item in value):
            return "ScalarList", (), (), str(list(value))
    if isinstance(value, bool | int | float):
        return "Scalar", (), (), str(value)
    return "", (), (), ""


def _launches(report: Report, clock: Clock) -> Iterator[Event]:
    """Driver calls and what they launch, with an arrow between the two; and the waits."""
    for correlation, bar in enumerate(clock.bars, start=1):
        stream = _FIRST_STREAM + bar.stream
        ids = {"External id": bar.call + 1, "correlation": correlation}
        yield _slice(
            _CATEGORY[bar.kind],
            bar.name,
            bar.start_us,
            bar.end_us,
            {**ids, "device": _DEVICE, "stream": stream, **_moved(bar)},
            _DEVICE,
            stream,
        )
        if bar.issued_us is None:
            continue
        issued = bar.issued_us - clock.issue_us
        yield _slice("cuda_runtime", _LAUNCH_CALL[bar.kind], issued, bar.issued_us, ids)
        arrow = {"cat": "ac2g", "name": "ac2g", "id": correlation}
        yield {**arrow, "ph": "s", "pid": _HOST, "tid": _THREAD, "ts": _us(issued)}
        yield {**arrow, "ph": "f", "bp": "e", "pid": _DEVICE, "tid": stream, "ts": _us(bar.start_us)}
    last_issue = {bar.call: bar.issued_us for bar in clock.bars if bar.issued_us is not None}
    for call, cost in enumerate(report.costs):
        inside = clock.host[call]
        if cost.work.host_wait and inside is not None:
            start = max(inside[0], last_issue.get(call, inside[0]))
            yield _slice("cuda_runtime", "cudaStreamSynchronize", start, inside[1], {"External id": call + 1})


def _moved(bar: Bar) -> Event:
    """Bytes and rate of a copy or a fill, under the names by which readers find them."""
    took = bar.end_us - bar.start_us
    if bar.nbytes is None or not took:
        return {}
    return {"bytes": bar.nbytes, "memory bandwidth (GB/s)": round(bar.nbytes / took * 1e-3, 3)}


def _counters(report: Report, clock: Clock) -> Iterator[Event]:
    """Memory as the allocator model has it after each call, launches issued and not yet ended, HBM traffic."""
    live = [int(nbytes) for nbytes in report.priced.memory.live_after]
    yield _counter("allocated memory", 0.0, "bytes", int(report.priced.memory.base))
    for call, inside in enumerate(clock.host):
        if inside is not None and (call == 0 or live[call] != live[call - 1]):
            yield _counter("allocated memory", inside[1], "bytes", live[call])
    waiting = [(bar.issued_us, 1) for bar in clock.bars if bar.issued_us is not None]
    ended = [(bar.end_us, -1) for bar in clock.bars if bar.issued_us is not None]
    yield from _running("launches in flight", "launches", sorted(waiting + ended))
    rates = [(bar, _bandwidth(report, bar)) for bar in clock.bars]
    steps = [step for bar, rate in rates for step in ((bar.start_us, rate), (bar.end_us, -rate))]
    yield from _running("HBM traffic (predicted bytes)", "GB/s", sorted(steps))


def _bandwidth(report: Report, bar: Bar) -> float:
    """GB/s while a launch runs: its part of its call's bytes over its time."""
    cost = report.costs[bar.call]
    took = bar.end_us - bar.start_us
    if not cost.hbm_bytes or not cost.launches or not took:
        return 0.0
    return cost.hbm_bytes / cost.launches / took * 1e-3


def _running(name: str, unit: str, steps: Sequence[tuple[float, float]]) -> Iterator[Event]:
    """A sum that changes at each step; one event for all changes of a moment."""
    totals = accumulate(change for _, change in steps)
    for place, ((at, _), total) in enumerate(zip(steps, totals, strict=True)):
        if place + 1 == len(steps) or _us(steps[place + 1][0]) != _us(at):
            yield _counter(name, at, unit, abs(round(total, 3)))


def _counter(name: str, at: float, unit: str, value: float) -> Event:
    return {"ph": "C", "name": name, "pid": _DEVICE, "tid": 0, "ts": _us(at), "args": {unit: value}}
