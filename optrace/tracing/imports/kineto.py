"""The trace of ``torch.profiler``: what ``export_chrome_trace`` wrote, of a profile with ``record_shapes=True``.

Events of a thread nest by time. Kernels name the op that launched them (``External id``); with ``with_stack=True``
modules and lines are events too.
"""

from __future__ import annotations

import re
from ast import literal_eval
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optrace.graph import Frame, ModuleCall, Phase, Source
from optrace.graph.foreign import CPP_DTYPES
from optrace.graph.measured import LaunchKind
from optrace.tracing.imports.overloads import is_made_of_others, overloads_of
from optrace.tracing.imports.seen import (
    SeenCall,
    SeenLaunch,
    SeenRun,
    SeenTensor,
    SeenValue,
    TraceFileError,
    checked,
)
from optrace.tracing.phases import from_optimizer

#: Events that stand around others on the host.
_HOST = frozenset({"cpu_op", "user_annotation", "python_function"})
_DEVICE: Mapping[str, LaunchKind] = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
_OP = re.compile(r"(?!autograd::|torch::)([A-Za-z_]\w*)::([A-Za-z_]\w*)(?:\.(\w+))?\Z")
_FRAME = re.compile(r"(.+)\((\d+)\): (.+)\Z")
_STEP = "ProfilerStep#"

#: Files that are not the user's, as a trace names them: relative to where they were installed, or in full.
_LIBRARY = re.compile(
    r"(torch|torchvision|transformers|timm|threading\.py|contextlib\.py|<)|.*(site-packages|/lib/python3)"
)


@dataclass(slots=True)
class _Event:
    """An event of the host with those inside it."""

    name: str
    category: str
    start_us: float
    end_us: float
    args: Mapping[str, Any]
    inside: list[_Event] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Around:
    """What an event stands in: its phase, modules from the outermost, Python frames from the innermost."""

    phase: Phase = "forward"
    modules: tuple[ModuleCall, ...] = ()
    frames: tuple[Frame, ...] = ()


def read_kineto(document: Mapping[str, Any]) -> SeenRun:
    """Raises ``TraceFileError`` where the trace holds no shapes, or no op at all."""
    events = [event for event in document["traceEvents"] if isinstance(event, dict)]
    threads: dict[tuple[Any, Any], list[_Event]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in _HOST:
            threads[event.get("pid"), event.get("tid")].append(_event(event))
    roots = [root for found in threads.values() for root in _nested(found)]
    if not any(event.get("cat") == "cpu_op" for event in events):
        raise TraceFileError("it holds no op: profile with ProfilerActivity.CPU")
    if not any("Input Dims" in event.get("args", {}) for event in events):
        raise TraceFileError("it holds no shapes: profile with record_shapes=True")
    named = any("." in event.name for event in _all(roots) if _OP.match(event.name))
    reader = _Reader(named)
    for root in sorted(roots, key=lambda event: event.start_us):
        reader.walk(root)
    calls = sorted(reader.calls, key=lambda pair: pair[0].start_us)
    unplaced = _place_launches(events, calls)
    marks = sorted(event.start_us for event in _all(roots) if event.name.startswith(_STEP))
    begun = [event.start_us for event, _ in calls]
    starts = sorted({bisect_left(begun, mark) for mark in marks} - {len(calls)})
    devices = document.get("deviceProperties") or []
    device = str(devices[0].get("name", "a GPU")) if devices else ""
    if not device and any(event.get("cat") == "kernel" for event in events):
        device = "a GPU"
    notes = [] if device else ["the trace holds no GPU: its calls ran on the CPU"]
    return SeenRun("profiler", [call for _, call in calls], device, starts, True, unplaced, notes)


def _event(event: Mapping[str, Any]) -> _Event:
    start = float(event["ts"])
    return _Event(
        str(event.get("name", "")),
        str(event["cat"]),
        start,
        start + float(event.get("dur", 0.0)),
        event.get("args") or {},
    )


def _nested(events: list[_Event]) -> list[_Event]:
    """The outermost events of a thread, each with those inside it."""
    roots: list[_Event] = []
    around: list[_Event] = []
    for event in sorted(events, key=lambda e: (e.start_us, -e.end_us, e.args.get("Ev Idx", 0))):
        while around and around[-1].end_us <= event.start_us:
            around.pop()
        (around[-1].inside if around else roots).append(event)
        around.append(event)
    return roots


def _all(events: Sequence[_Event]) -> Iterator[_Event]:
    waiting = list(events)
    while waiting:
        event = waiting.pop()
        yield event
        waiting += event.inside


class _Reader:
    """Takes calls out of nested events. ``named``: op names carry their overload where it is not the default."""

    def __init__(self, named: bool) -> None:
        self.calls: list[tuple[_Event, SeenCall]] = []
        self._named = named
        self._module_calls: Counter[str] = Counter()

    def walk(self, root: _Event) -> None:
        """Take the outermost calls of an event that are no composites of others."""
        waiting = [(root, _Around())]
        while waiting:
            event, around = waiting.pop()
            inside = self._enter(event, around)
            if self._is_call(event):
                self.calls.append((event, self._call(event, around)))
                continue
            waiting += [(child, inside) for child in reversed(event.inside)]

    def _is_call(self, event: _Event) -> bool:
        match = _OP.match(event.name)
        if event.category != "cpu_op" or match is None:
            return False
        packet = f"{match[1]}.{match[2]}"
        if not overloads_of(packet):
            return "Input Dims" in event.args and not any(map(self._is_call, event.inside))
        return not is_made_of_others(packet)

    def _enter(self, event: _Event, around: _Around) -> _Around:
        """What the events inside this one stand in."""
        if event.name.startswith("autograd::engine::evaluate_function"):
            return _Around("backward", around.modules, around.frames)
        if event.name.startswith("Optimizer."):
            return _Around("optimizer", around.modules, around.frames)
        if event.category != "python_function":
            return around
        if event.name.startswith("nn.Module: "):
            return _Around(around.phase, (*around.modules, self._module(event, around)), around.frames)
        match = _FRAME.match(event.name)
        if match is None:
            return around
        file, line, function = match.groups()
        frame = Frame(file, int(line), function, not _LIBRARY.match(file))
        return _Around(around.phase, around.modules, (frame, *around.frames))

    def _module(self, event: _Event, around: _Around) -> ModuleCall:
        """``Linear_0`` is the first instance of its class that was called: traces know no attribute names."""
        name = event.name.removeprefix("nn.Module: ")
        path = f"{around.modules[-1].path}.{name}" if around.modules else name
        self._module_calls[path] += 1
        return ModuleCall(path, name.rpartition("_")[0] or name, self._module_calls[path])

    def _call(self, event: _Event, around: _Around) -> SeenCall:
        match = _OP.match(event.name)
        assert match is not None
        overload = (match[3] or "default") if self._named else None
        frames = around.frames
        phase: Phase = "optimizer" if from_optimizer(Source(frames)) else around.phase
        user = next((place for place, frame in enumerate(frames) if frame.user), len(frames) - 1)
        return SeenCall(
            op=f"{match[1]}.{match[2]}",
            overload="" if overload == "default" else overload,
            args=tuple(_arguments(event.args)),
            phase=phase,
            module=around.modules[-1] if around.modules else None,
            source=Source(frames[: user + 1]),
            autograd=phase == "forward" and "Sequence number" in event.args,
            host_us=(event.start_us, event.end_us),
        )


def _arguments(args: Mapping[str, Any]) -> Iterator[SeenValue]:
    """The arguments in the order of the schema, those with defaults too."""
    kinds, shapes = args.get("Input type", ()), args.get("Input Dims", ())
    strides, values = args.get("Input Strides", ()), args.get("Concrete Inputs", ())
    for place, kind in enumerate(kinds):
        shape = shapes[place] if place < len(shapes) else []
        stride = strides[place] if place < len(strides) else []
        if kind in CPP_DTYPES:
            yield _tensor(shape, stride, CPP_DTYPES[kind])
        elif kind in ("TensorList", "GenericList") and all(isinstance(one, list) for one in shape):
            given = stride if len(stride) == len(shape) else [[]] * len(shape)
            yield tuple(_tensor(one, its, "") for one, its in zip(shape, given, strict=True))
        else:
            yield _value(values[place] if place < len(values) else "")


def _tensor(shape: Sequence[int], stride: Sequence[int], dtype: str) -> SeenTensor:
    if len(stride) != len(shape):  # before torch 2.1 there were none
        stride = [1] * len(shape)
        for place in range(len(shape) - 2, -1, -1):
            stride[place] = stride[place + 1] * max(1, shape[place + 1])
    return checked(SeenTensor(tuple(shape), tuple(stride), dtype))


def _value(text: str) -> SeenValue:
    """``"2."``, ``"True"``, ``"[0, 1]"``; empty is None, or what the profiler does not write."""
    if not text:
        return None
    try:
        found = literal_eval(text)
    except (ValueError, SyntaxError):
        return {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}.get(text, text)
    return tuple(found) if isinstance(found, list) else found


def _place_launches(
    events: Sequence[Mapping[str, Any]], calls: Sequence[tuple[_Event, SeenCall]]
) -> list[SeenLaunch]:
    """Give each launch to the call that it came from, and return those that came from none."""
    owner: dict[object, SeenCall] = {}
    for event, call in calls:
        for part in _all([event]):
            if "External id" in part.args and part.category == "cpu_op":
                owner[part.args["External id"]] = call
    issued: dict[object, float] = {}
    for driver in events:
        if driver.get("cat") in ("cuda_runtime", "cuda_driver"):
            correlation = (driver.get("args") or {}).get("correlation")
            if correlation is not None:
                issued[correlation] = float(driver["ts"])
    streams: dict[tuple[object, object], int] = {}  # by GPU and its number there
    unplaced: list[SeenLaunch] = []
    found = [event for event in events if event.get("cat") in _DEVICE and event.get("ph") == "X"]
    for ran in sorted(found, key=lambda event: float(event["ts"])):
        args = ran.get("args") or {}
        stream = args.get("device", ran.get("pid")), args.get("stream", ran.get("tid"))
        start = float(ran["ts"])
        launch = SeenLaunch(
            _DEVICE[ran["cat"]],
            str(ran.get("name", "")),
            streams.setdefault(stream, len(streams)),
            start,
            start + float(ran.get("dur", 0.0)),
            issued.get(args.get("correlation")),
            args.get("bytes"),
        )
        of = owner.get(args.get("External id"))
        (unplaced if of is None else of.launches).append(launch)
    return unplaced
