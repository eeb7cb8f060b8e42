"""Measuring one step of a program on a CUDA machine, as a row of a record.

Times are taken with nothing watching; calls, launches, events and memory in runs of their own.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter  # not by attribute: a session replaces it, to hear the program's own
from typing import Any

import msgspec
import torch

from optrace import units
from optrace.graph import OpGraph, TensorMeta, Value
from optrace.measuring.events import EventTimes, timed_by_events
from optrace.measuring.launches import Profiled, profiled, quicker
from optrace.measuring.limits import Limits, StageTimeoutError
from optrace.measuring.machine import GpuState, remarks_under_load, state_under_load
from optrace.measuring.record import Launch
from optrace.measuring.steady import SteadyTimings, goes_backward, undisturbed_loop_us
from optrace.measuring.steps import MeasureError, Repeated, Steps
from optrace.tracing import Session
from optrace.tracing.gaps import Gaps, keep_times, typical

Step = Callable[[], object]

#: A step has settled when the quickest of this many is within ``_SETTLED`` of the quickest of as many before them.
_WINDOW = 4
_SETTLED = 0.05

#: The Python between calls is timed in this many runs at least, however long they take.
_LEAST_GAPS = 3

#: More disturbed timings than this share are worth a word, and so is a wider spread of those that are left.
_DISTURBED = 1 / 3
_WIDE = 0.25

#: Sum of the times by events against the profiler's: more apart than this share, and than what the device takes from
#: the end of one launch to the start of the next, is worth a word.
_APART = 0.25
_BETWEEN_LAUNCHES_US = 2.0


@dataclass(frozen=True, slots=True)
class Spread:
    """A time that was taken ``n`` times: its median, and the tenth and the ninetieth percentile."""

    median: float
    p10: float
    p90: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of one value or more."""
        ordered = sorted(values)
        last = len(ordered) - 1
        return cls(
            statistics.median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)], len(ordered)
        )

    @property
    def width(self) -> float:
        """Relative to the median."""
        return (self.p90 - self.p10) / self.median if self.median else 0.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """One step as measured. Times are in microseconds, sequences in call order.

    ``event_us`` and ``event_cold_us`` (the L2 flushed before each call) are empty where the stage gave nothing;
    ``remarks`` is what a reader should know before trusting the figures; ``row`` goes into a record.
    """

    graph: OpGraph
    issue: Spread
    wall: Spread
    back_to_back: Spread
    launches: tuple[tuple[Launch, ...], ...]
    stray: tuple[Launch, ...]
    event_us: tuple[float, ...]
    event_cold_us: tuple[float, ...]
    memory_base: int
    memory_peak: int
    remarks: tuple[str, ...]
    row: dict[str, Any]

    @property
    def call_us(self) -> tuple[float, ...]:
        """Device time of each call by the profiler."""
        return tuple(sum(launch.us for launch in launches) for launches in self.launches)

    @property
    def device_us(self) -> float:
        """All launches of the step."""
        return sum(self.call_us) + sum(launch.us for launch in self.stray)


def measure(
    session: Session,
    name: str,
    step: Step | Steps,
    *,
    repeats: int = 30,
    seconds: float = 5.0,
    limits: Limits | None = None,
    progress: Callable[[str], None] = lambda _stage: None,
) -> Measurement:
    """Warm up, measure, record. ``repeats`` and ``seconds`` bound each timed stage; ``limits`` all of them.

    Raises ``MeasureError`` where a step launches nothing or another thing each time, and ``StageTimeoutError``; a
    cross-check that fails is told in the remarks.
    """
    steps = Repeated(step) if callable(step) else step
    remarks: list[str] = []

    def stage(what: str) -> AbstractContextManager[None]:
        progress(what)
        return nullcontext() if limits is None else limits.stage(what)

    with stage("warm-up"):
        settled, warmup_steps = _warm_up(steps, seconds)
    remarks += _remarks_on_warm_up(settled, warmup_steps)
    with stage("timing the step"):
        backward = goes_backward(session.device, lambda: steps.run(nullcontext, 1))
        timings = SteadyTimings(undisturbed_loop_us(), backward)
        _timed(steps, repeats, seconds, timings)
    steady = timings.undisturbed()
    loop_us = statistics.median(timing.loop_us for timing in steady)
    issue, wall = (Spread.of(column) for column in zip(*(timing.us for timing in steady), strict=True))
    remarks += _remarks_on(wall, len(timings.made) - len(steady), len(timings.made))
    with stage("timing steps back to back"):
        back_to_back = _back_to_back(steps, repeats, seconds)
    with stage("asking the driver under load"):
        states: list[GpuState] = []
        with state_under_load(states) as waiting:
            while waiting():
                steps.run(nullcontext, 5)
        torch.cuda.synchronize()
    remarks += remarks_under_load(states[0] if states else None)
    with stage("peak memory"):
        memory = _Memory()
        steps.run(memory.around, 1)
    with stage("timing the program's Python"):
        gaps = _time_gaps(session, steps, repeats, seconds, timings.another())
    with stage("recording the step"):
        graph = _recorded(session, steps)
        if not len(graph):
            raise MeasureError(f"{name} dispatched no op, so there is nothing to measure")
        watched = typical(graph, gaps, issue.median)
        if watched is not None:
            keep_times(graph, watched, loop_us=loop_us)
        rows = _calls(graph)  # before a further step frees what this one left
        for row, us in zip(rows, watched.inside_us if watched is not None else (), strict=False):
            row["in_us"] = round(us, 2)
    with stage("profiling the launches"):
        runs = [_profiled(session, steps, len(graph)) for _ in range(2)]
    launches = tuple(map(tuple, quicker(*runs)))
    if not any(launches):
        raise MeasureError(f"{name} launched nothing on the GPU: is its model on it?")
    for row, call in zip(rows, launches, strict=True):
        row["kernels"] = [msgspec.to_builtins(launch) for launch in call]
    events = {}
    for flushed, field in ((False, "event_us"), (True, "event_cold_us")):
        try:
            with stage(f"timing calls by events, L2 {'flushed' if flushed else 'left as it is'}"):
                events[field] = _by_events(session, steps, flushed, seconds)
        except (RuntimeError, StageTimeoutError) as error:
            remarks.append(f"no times by CUDA events: {error}")
        times = events.get(field, ())
        if len(times) != len(graph):
            events[field] = ()
            continue
        for row, us in zip(rows, times, strict=True):
            row[field] = us
    remarks += _remarks_on_events(events["event_us"], launches)
    stray = tuple(runs[0].stray)
    device_us = sum(launch.us for call in launches for launch in call) + sum(launch.us for launch in stray)
    return Measurement(
        graph=graph,
        issue=issue,
        wall=wall,
        back_to_back=back_to_back,
        launches=launches,
        stray=stray,
        event_us=events["event_us"],
        event_cold_us=events["event_cold_us"],
        memory_base=memory.base,
        memory_peak=memory.peak,
        remarks=tuple(remarks),
        row={
            "name": name,
            "n": wall.n,
            "issue_us": issue.median,
            "issue_p10_us": issue.p10,
            "issue_p90_us": issue.p90,
            "wall_us": wall.median,
            "wall_p10_us": wall.p10,
            "wall_p90_us": wall.p90,
            "wall_min_us": min(timing.us[1] for timing in steady),
            "b2b_us": back_to_back.median,
            "b2b_p10_us": back_to_back.p10,
            "b2b_p90_us": back_to_back.p90,
            "n_disturbed": len(timings.made) - len(steady),
            "settled": settled,
            "warmup_steps": warmup_steps,
            "tail_us": graph.info.tail_us,
            "float32_matmul": graph.info.float32_matmul,
            "float32_convolution": graph.info.float32_convolution,
            "python_loop_us": loop_us,
            "gpu_us": device_us,
            "mem_base": memory.base,
            "mem_peak": memory.peak,
            "n_ops": len(graph),
            "n_kernels": sum(map(len, launches)),
            "remarks": remarks,
            "stray": [msgspec.to_builtins(launch) for launch in stray],
            "ops": rows,
        },
    )


def has_settled(wall_us: Sequence[float]) -> bool:
    """Whether the last steps take what those before them took: by the quickest of each few, since a host that is
    disturbed makes single ones longer."""
    if len(wall_us) < 2 * _WINDOW:
        return False
    before, last = min(wall_us[-2 * _WINDOW : -_WINDOW]), min(wall_us[-_WINDOW:])
    return abs(last - before) <= _SETTLED * before


def _warm_up(steps: Steps, seconds: float) -> tuple[bool, int]:
    """Run until the step settles or the time is over: whether it has, and how many it took. The first step, in which
    libraries are loaded and memory is taken, takes none of the time."""
    found: list[float] = []

    @contextmanager
    def around() -> Iterator[None]:
        torch.cuda.synchronize()
        start = perf_counter()
        yield
        torch.cuda.synchronize()
        found.append((perf_counter() - start) * 1e6)

    steps.run(around, 1)
    end = perf_counter() + seconds
    steps.run(around, 2 * _WINDOW, seconds)
    while not has_settled(found) and perf_counter() < end:
        steps.run(around, _WINDOW)
    return has_settled(found), len(found)


def _remarks_on_warm_up(settled: bool, count: int) -> list[str]:
    if settled:
        return []
    if count < 2 * _WINDOW:
        return [
            f"the time for the warm-up was over after {units.counted(count, 'step')}: too few to know whether they have settled"
        ]
    return [f"the step had not settled after {count} steps: its times still change"]


def _remarks_on(wall: Spread, disturbed: int, taken: int) -> list[str]:
    remarks = []
    if disturbed > _DISTURBED * taken:
        remarks.append(
            f"the host was disturbed: {disturbed} of {taken} timings were taken while it was slower than at its best, "
            "and left out"
        )
    if wall.width > _WIDE:
        remarks.append(
            f"wall times spread from {wall.p10:,.0f} to {wall.p90:,.0f} us (10 to 90 %): something disturbs them"
        )
    return remarks


def _remarks_on_events(times: Sequence[float], launches: Sequence[Sequence[Launch]]) -> list[str]:
    """The two ways of timing a kernel must agree."""
    profiler = sum(launch.us for call in launches for launch in call)
    events = sum(us for us, call in zip(times, launches, strict=False) if call)
    allowed = _APART * profiler + _BETWEEN_LAUNCHES_US * sum(map(len, launches))
    if not times or not profiler or abs(events - profiler) <= allowed:
        return []
    return [
        f"the profiler and CUDA events disagree: {profiler:,.0f} and {events:,.0f} us in all "
        "(events also hold the time between the launches of one call)"
    ]


def _recorded(session: Session, steps: Steps) -> OpGraph:
    """One step, recorded with nothing pending before."""
    session.forget()

    @contextmanager
    def around() -> Iterator[None]:
        torch.cuda.synchronize()
        with session.recording():
            yield
        torch.cuda.synchronize()

    steps.run(around, 1)
    return session.graph


def _profiled(session: Session, steps: Steps, calls: int) -> Profiled:
    found = Profiled()
    steps.run(lambda: profiled(session, calls, found), 1)
    return found


def _by_events(session: Session, steps: Steps, flushed: bool, seconds: float) -> tuple[float, ...]:
    """The shortest of three runs, call by call."""
    runs: list[EventTimes] = []

    def around() -> AbstractContextManager[None]:
        runs.append(EventTimes())
        return timed_by_events(session, runs[-1], flushed=flushed)

    steps.run(around, 3, seconds)
    alike = [run.us for run in runs if len(run.us) == len(runs[0].us)]
    return tuple(min(times) for times in zip(*alike, strict=True))


def _time_gaps(
    session: Session, steps: Steps, repeats: int, seconds: float, timings: SteadyTimings
) -> list[Gaps]:
    """The time between calls in steps run at the host's best speed."""
    runs: list[Gaps] = []

    @contextmanager
    def around() -> Iterator[None]:
        with timings.step() as us:
            torch.cuda.synchronize()
            with session.timing_gaps(runs.append):
                yield
            torch.cuda.synchronize()
            us.append(len(runs) - 1)

    done = steps.run(around, repeats, seconds, timings.look)
    if done < _LEAST_GAPS:
        steps.run(around, _LEAST_GAPS - done, look=timings.look)
    return [runs[int(timing.us[0])] for timing in timings.undisturbed()]


def _timed(steps: Steps, repeats: int, seconds: float, timings: SteadyTimings) -> None:
    """Microseconds until the host is done, and until the device is; nothing pending before."""

    @contextmanager
    def around() -> Iterator[None]:
        with timings.step() as us:
            torch.cuda.synchronize()
            start = perf_counter()
            yield
            issued = perf_counter()
            torch.cuda.synchronize()
            us += [(issued - start) * 1e6, (perf_counter() - start) * 1e6]

    steps.run(around, repeats, seconds, timings.look)


def _back_to_back(steps: Steps, repeats: int, seconds: float) -> Spread:
    """Microseconds a step of many issued one after the other, a few times over."""
    found: list[float] = []
    clock = [0.0]

    def start() -> None:
        torch.cuda.synchronize()
        clock[0] = perf_counter()

    def end() -> None:
        torch.cuda.synchronize()
        clock[0] = perf_counter() - clock[0]

    over = perf_counter() + seconds
    while not found or (len(found) < 5 and perf_counter() < over):
        count = steps.row(max(repeats // 3, 3), start, end)
        found.append(clock[0] * 1e6 / count)
    return Spread.of(found)


class _Memory:
    """Bytes allocated before a step, and the most during it."""

    base = 0
    peak = 0

    @contextmanager
    def around(self) -> Iterator[None]:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self.base = torch.cuda.memory_allocated()
        yield
        torch.cuda.synchronize()
        self.peak = torch.cuda.max_memory_allocated()


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
