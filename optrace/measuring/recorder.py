"""Measuring one step of a program on a CUDA machine, as a row of a record.

Times are taken with nothing watching; calls, launches and memory in runs of their own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from optrace.graph import OpGraph, TensorMeta, Value
from optrace.measuring.launches import profile_launches
from optrace.measuring.record import Launch
from optrace.measuring.steady import Timing, timed, undisturbed
from optrace.tracing import Session
from optrace.tracing.gaps import Gaps, keep_times

Step = Callable[[], object]


def measure(
    session: Session, name: str, step: Step, *, repeats: int = 30, seconds: float = 5.0
) -> dict[str, Any]:
    """Warm up, measure, record: the row of ``name`` in a record (``docs/record.md``), ready for JSON.

    ``repeats`` and ``seconds`` bound each of the two timed stages; medians are kept.
    """
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    timings = _timed(step, repeats, seconds)
    steady = undisturbed(timings)
    loop_us = statistics.median(timing.loop_us for timing in steady)
    issue, wall = zip(*(timing.us for timing in steady), strict=True)
    back_to_back = _back_to_back(step, min(repeats, len(timings)))
    base, peak = _memory(step)
    gaps, gaps_loop_us = _time_gaps(session, step, repeats, seconds)
    graph = _recorded(session, step)
    keep_times(graph, gaps, loop_us=loop_us, scale=loop_us / gaps_loop_us)
    rows = _calls(graph)  # before a further step frees what this one left
    runs = [profile_launches(session, step, len(graph)) for _ in range(2)]
    launches = [_quicker(first, second) for first, second in zip(runs[0][0], runs[1][0], strict=True)]
    for row, call in zip(rows, launches, strict=True):
        row["kernels"] = [msgspec.to_builtins(launch) for launch in call]
    device_us = sum(launch.us for call in launches for launch in call) + sum(
        launch.us for launch in runs[0][1]
    )
    return {
        "name": name,
        "n": len(wall),
        "issue_us": statistics.median(issue),
        "wall_us": statistics.median(wall),
        "wall_min_us": min(wall),
        "b2b_us": back_to_back,
        "n_disturbed": len(timings) - len(steady),
        "wall_spread": (max(wall) - min(wall)) / statistics.median(wall),
        "tail_us": graph.info.tail_us,
        "python_loop_us": loop_us,
        "gpu_us": device_us,
        "mem_base": base,
        "mem_peak": peak,
        "n_ops": len(graph),
        "n_kernels": sum(map(len, launches)),
        "stray": [msgspec.to_builtins(launch) for launch in runs[0][1]],
        "ops": rows,
    }


def _recorded(session: Session, step: Step) -> OpGraph:
    """One step, recorded with nothing pending before."""
    torch.cuda.synchronize()
    session.forget()
    with session.recording():
        step()
    torch.cuda.synchronize()
    return session.graph


def _time_gaps(session: Session, step: Step, repeats: int, seconds: float) -> tuple[list[Gaps], float]:
    """The time between calls in runs made at the host's best speed, and a turn of the reference loop meanwhile."""
    runs: list[Gaps] = []

    def run() -> tuple[float, ...]:
        torch.cuda.synchronize()
        runs.append(session.time_gaps(step))
        torch.cuda.synchronize()
        return (len(runs) - 1,)

    timings: list[Timing] = []
    end = time.perf_counter() + seconds
    while len(timings) < repeats and (time.perf_counter() < end or len(timings) < 3):
        timings.append(timed(run))
    steady = undisturbed(timings)
    return [runs[int(timing.us[0])] for timing in steady], statistics.median(t.loop_us for t in steady)


def _timed(step: Step, repeats: int, seconds: float) -> list[Timing]:
    """Microseconds until the host is done, and until the device is; nothing pending before."""
    found: list[Timing] = []

    def run() -> tuple[float, ...]:
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        issued = time.perf_counter()
        torch.cuda.synchronize()
        return (issued - start) * 1e6, (time.perf_counter() - start) * 1e6

    end = time.perf_counter() + seconds
    while len(found) < repeats and (time.perf_counter() < end or len(found) < 3):
        found.append(timed(run))
    return found


def _back_to_back(step: Step, repeats: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e6 / repeats


def _memory(step: Step) -> tuple[int, int]:
    """Bytes allocated before a step, and the most during it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return base, torch.cuda.max_memory_allocated()


def _quicker(first: list[Launch], second: list[Launch]) -> list[Launch]:
    """The quicker of two runs, launch by launch, where both launched the same."""
    if [launch.name for launch in first] != [launch.name for launch in second]:
        return first
    return [a if a.us <= b.us else b for a, b in zip(first, second, strict=True)]


def _calls(graph: OpGraph) -> list[dict[str, Any]]:
    return [
        {
            "op": node.op,
            "args": [_plain(value) for value in node.args],
            "kwargs": {name: _plain(value) for name, value in node.kwargs.items()},
            "out": _plain(node.out),
            "freed": list(node.freed),
            "pre_us": node.python_us,
            "phase": node.phase,
            "stream": node.stream,
            "module": node.module.path if node.module else None,
        }
        for node in graph
    ]


def _plain(value: Value) -> Any:
    if isinstance(value, TensorMeta):
        device = value.device.partition(":")[0]
        storage = value.storage if value.storage >= 0 else None
        return {
            "t": [value.shape, value.stride, value.dtype, device, storage, value.storage_bytes, value.offset]
        }
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return repr(value) if isinstance(value, complex) else value
