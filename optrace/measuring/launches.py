"""Which launches belong to which call: a profiler run in which each call stands in an annotation of its own.

The profiler gives each kernel, copy and memset the correlation number of the runtime call that launched it;
that call's time and thread lie inside the annotation of one dispatched call.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from optrace.measuring.record import Launch
from optrace.tracing import Session

_MARK = "optrace call "

#: Categories of the profiler's trace: what they are in a record.
LAUNCH_CATEGORIES = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}


@dataclass(slots=True)
class Profiled:
    """What a profiled step launched: by call, and what belongs to none."""

    calls: list[list[Launch]] = field(default_factory=list)
    stray: list[Launch] = field(default_factory=list)


@contextmanager
def profiled(session: Session, calls: int, found: Profiled) -> Iterator[None]:
    """Profile the step run inside, which has ``calls`` calls, into ``found``.

    The recording of ``session`` must be of the same step; this run is not recorded.
    """
    torch.cuda.synchronize()
    with profiling() as profiler:
        with session.counting(lambda number: torch.profiler.record_function(f"{_MARK}{number}")):
            yield
        torch.cuda.synchronize()
    found.calls, found.stray = by_call(trace_events(profiler), calls)


@contextmanager
def profiling() -> Iterator[torch.profiler.profile]:
    """torch's profiler of what the host calls and the device runs."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with warnings.catch_warnings():
        # Said once a process of profilers that run more than one cycle; these run one.
        warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
        with torch.profiler.profile(activities=activities) as profiler:
            yield profiler


def trace_events(profiler: torch.profiler.profile) -> list[dict[str, Any]]:
    """The events of a profiler run, as it writes them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_bytes())["traceEvents"]
    return events


def by_call(events: list[dict[str, Any]], calls: int) -> tuple[list[list[Launch]], list[Launch]]:
    """The launches among a profiler's ``events`` by the call that launched them, each list in the order in which they
    ran, and those of none."""
    marks: dict[Any, list[tuple[float, float, int]]] = {}
    launched_at: dict[int, tuple[float, Any]] = {}
    device: list[dict[str, Any]] = []
    for event in events:
        category = event.get("cat")
        if category in ("cuda_runtime", "cuda_driver"):
            correlation = event["args"].get("correlation")
            if correlation is not None:
                launched_at.setdefault(correlation, (event["ts"], event["tid"]))
        elif category in LAUNCH_CATEGORIES:
            device.append(event)
        elif category == "user_annotation" and str(event.get("name", "")).startswith(_MARK):
            number = int(event["name"][len(_MARK) :])
            marks.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"], number))
    for rows in marks.values():
        rows.sort()
    starts = {thread: [row[0] for row in rows] for thread, rows in marks.items()}
    found: list[list[Launch]] = [[] for _ in range(calls)]
    stray = []
    for event in sorted(device, key=lambda event: event["ts"]):
        launch = _launch(event)
        when, thread = launched_at.get(event["args"].get("correlation", -1), (-1.0, None))
        place = bisect_right(starts.get(thread, []), when) - 1
        row = marks[thread][place] if place >= 0 else None
        if row is not None and when <= row[1] and row[2] < calls:
            found[row[2]].append(launch)
        else:
            stray.append(launch)
    return found, stray


def _launch(event: dict[str, Any]) -> Launch:
    arguments = event["args"]
    return Launch(
        kind=LAUNCH_CATEGORIES[event["cat"]],
        name=event["name"],
        us=event["dur"],
        bytes=arguments.get("bytes"),
        grid=tuple(arguments["grid"]) if "grid" in arguments else None,
    )


def quicker(first: Profiled, second: Profiled) -> list[list[Launch]]:
    """By call, the quicker of two runs launch by launch where both launched the same, else the first."""
    return [_quicker(a, b) for a, b in zip(first.calls, second.calls, strict=True)]


def _quicker(first: list[Launch], second: list[Launch]) -> list[Launch]:
    if [launch.name for launch in first] != [launch.name for launch in second]:
        return first
    return [a if a.us <= b.us else b for a, b in zip(first, second, strict=True)]
