"""The host/device queue: when each call is issued, starts and ends, and what the wall clock is made of.

One host clock, one device clock a stream. A call's k-th launch is issued at the end of its dispatch plus
k launch costs; it starts once it is issued and the launch before it on its stream has ended. The device
time of a call is spread evenly over its launches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import overload

import numpy as np

from optrace.cost.host import HostTime
from optrace.cost.pricing import PricedGraph
from optrace.graph.columns import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Task:
    """One call as the queue sees it: its host time, its ``launches`` on ``stream`` with ``device_us`` in
    all, and whether the host waits for it (``host_wait``)."""

    host: HostTime
    launches: int
    device_us: float
    stream: int = 0
    host_wait: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """One call on the clocks, in microseconds from the start of the run.

    Each microsecond of the wall clock belongs to one call: ``gap_us``, the device stood idle just before
    it because nothing was issued; ``exposed_us``, its device time that no other stream's call already
    covers (all of ``busy_us`` where there is one stream); ``wait_us`` (a call that makes the host wait),
    idle time before later calls that would vanish without its wait.
    """

    host_start_us: float
    host_end_us: float
    start_us: float
    end_us: float
    busy_us: float
    gap_us: float
    exposed_us: float
    wait_us: float = 0.0

    @property
    def wall_us(self) -> float:
        """The call's share of the wall clock."""
        return self.gap_us + self.exposed_us + self.wait_us


class Spans(Sequence[Span]):
    """The calls' spans in call order, kept as columns."""

    def __init__(
        self,
        host_start_us: Floats,
        host_end_us: Floats,
        start_us: Floats,
        end_us: Floats,
        busy_us: Floats,
        gap_us: Floats,
        exposed_us: Floats,
        wait_us: Floats,
    ) -> None:
        self.start_us, self.gap_us, self.exposed_us = start_us, gap_us, exposed_us
        self.busy_us, self.wait_us = busy_us, wait_us
        self._rows = (host_start_us, host_end_us, start_us, end_us, busy_us, gap_us, exposed_us, wait_us)

    def __len__(self) -> int:
        return len(self.gap_us)

    @property
    def wall_us(self) -> Floats:
        """Each call's share of the wall clock."""
        return self.gap_us + self.exposed_us + self.wait_us

    @overload
    def __getitem__(self, call: int) -> Span: ...
    @overload
    def __getitem__(self, call: slice) -> Sequence[Span]: ...
    def __getitem__(self, call: int | slice) -> Span | Sequence[Span]:
        if isinstance(call, slice):
            return [self[number] for number in range(*call.indices(len(self)))]
        return Span(*(float(row[call]) for row in self._rows))

    def __iter__(self) -> Iterator[Span]:
        return map(Span, *(row.tolist() for row in self._rows))


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch of a task, by its place in the run, on the clocks."""

    task: int
    issued_us: float
    start_us: float
    end_us: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The replayed run: the spans' ``wall_us`` and ``host_tail_us`` add up to ``wall_us``.

    ``wall_us`` runs from an empty queue to the final synchronize, ``issue_us`` until the host is done;
    ``b2b_us`` is one of many steps issued back to back; ``host_tail_us`` is the host still working, or
    synchronizing, after the last kernel.
    """

    spans: Spans
    wall_us: float
    issue_us: float
    b2b_us: float
    host_tail_us: float


@dataclass(frozen=True, slots=True)
class _Tasks:
    """Tasks as columns."""

    before_launch_us: Floats
    launch_us: Floats
    launches: Ints
    device_us: Floats
    stream: Ints
    host_wait: Bools


def tasks_of(priced: PricedGraph) -> Iterator[Task]:
    """The calls of a priced graph as the queue sees them."""
    for call, cost in enumerate(priced.costs):
        yield Task(
            host=cost.host,
            launches=cost.launches or 0,
            device_us=cost.device_us or 0.0,
            stream=priced.graph.stream(call),
            host_wait=cost.work.host_wait,
        )


def replay(priced: PricedGraph) -> Timeline:
    """A priced graph through the queue of its host."""
    host = priced.pricing.host
    return _simulate(_tasks(priced), host.sync_us, host.queue_depth, priced.tail_us, host.synchronize_us)


def wall_us_with(priced: PricedGraph, instead: Mapping[int, Task | None]) -> float:
    """The wall clock of a priced graph's replay with some calls made otherwise, or (None) left out."""
    tasks, host = _tasks(priced), priced.pricing.host
    changed = [call for call, task in instead.items() if task is not None]
    others = _columns([task for task in instead.values() if task is not None])
    stays = np.ones(len(tasks.launches), dtype=np.bool_)
    stays[[call for call, task in instead.items() if task is None]] = False
    rows = []
    for field in fields(_Tasks):
        row = getattr(tasks, field.name).copy()
        row[changed] = getattr(others, field.name)
        rows.append(row[stays])
    queue = _Queue(host.sync_us, host.queue_depth, priced.tail_us)
    queue.run(_Tasks(*rows))
    return queue.clock + host.synchronize_us


def launches(priced: PricedGraph) -> list[Launched]:
    """Each launch of a priced graph as ``replay`` runs it, in the order in which the host issues them."""
    host = priced.pricing.host
    launched: list[Launched] = []
    _Queue(host.sync_us, host.queue_depth, priced.tail_us, launched=launched).run(_tasks(priced))
    return launched


def _tasks(priced: PricedGraph) -> _Tasks:
    costs = priced.costs
    return _Tasks(
        costs.host.before_launch_us,
        costs.host.launch_us,
        np.nan_to_num(costs.launches).astype(np.int64),
        np.nan_to_num(costs.device_us),
        priced.graph.streams(),
        costs.host_wait,
    )


def simulate(
    tasks: Sequence[Task],
    *,
    sync_us: float = 0.0,
    queue_depth: int = 1024,
    tail_us: float = 0.0,
    synchronize_us: float = 0.0,
) -> Timeline:
    """Replay ``tasks`` through the queue.

    ``sync_us``: what a wait costs the host beyond the waiting. ``queue_depth``: launches that may be
    pending on a stream before the host has to wait for the oldest. ``tail_us``: the host's time after the last task.
    ``synchronize_us``: what the final synchronize costs beyond the waiting.
    """
    return _simulate(_columns(tasks), sync_us, queue_depth, tail_us, synchronize_us)


def _columns(tasks: Sequence[Task]) -> _Tasks:
    return _Tasks(
        np.array([task.host.before_launch_us for task in tasks], dtype=np.float64),
        np.array([task.host.launch_us for task in tasks], dtype=np.float64),
        np.array([task.launches for task in tasks], dtype=np.int64),
        np.array([task.device_us for task in tasks], dtype=np.float64),
        np.array([task.stream for task in tasks], dtype=np.int64),
        np.array([task.host_wait for task in tasks], dtype=np.bool_),
    )


def _simulate(
    tasks: _Tasks, sync_us: float, queue_depth: int, tail_us: float, synchronize_us: float
) -> Timeline:
    queue = _Queue(sync_us, queue_depth, tail_us)
    spans = queue.run(tasks)
    issue, device_end = queue.host_clock, queue.device_clock
    wall = max(issue, device_end) + synchronize_us
    if tasks.host_wait.any():
        free = _Queue(sync_us, queue_depth, tail_us, waits=False).run(tasks)
        _charge_waits(tasks, spans, free.gap_us)
        queue.run(tasks)
        before = queue.clock
        queue.run(tasks)
        period = queue.clock - before
    else:
        # Without a wait, host and device only push each other forward: the slower one sets the pace.
        period = max(issue, *np.bincount(tasks.stream, tasks.device_us), 0.0)
    return Timeline(spans, wall, issue, float(period), wall - device_end)


class _Queue:
    """The clocks. Running tasks again goes on where the last run stopped."""

    def __init__(
        self,
        sync_us: float,
        queue_depth: int,
        tail_us: float,
        *,
        waits: bool = True,
        launched: list[Launched] | None = None,
    ) -> None:
        self.host_clock = 0.0
        self.device_clock = 0.0
        self._sync_us = sync_us
        self._depth = queue_depth
        self._tail_us = tail_us
        self._waits = waits
        self._launched = launched
        # By stream: when the last launch ends, and when each did.
        self._stream_end: dict[int, float] = {}
        self._ends: dict[int, list[float]] = {}

    @property
    def clock(self) -> float:
        return max(self.host_clock, self.device_clock)

    def run(self, tasks: _Tasks) -> Spans:
        """One turn a call, with nothing called and nothing made in it: a long script makes a million."""
        count = len(tasks.launches)
        host_ends, starts = [0.0] * count, [0.0] * count
        # Of calls that launch.
        ends_us, gaps, exposures = list[float](), list[float](), list[float]()
        begin = host = self.host_clock
        clock, depth, sync_us = self.device_clock, self._depth, self._sync_us
        launched, stream = self._launched, 0
        stream_end, ends = self._stream_end.get(stream, 0.0), self._ends.setdefault(stream, [])
        rows = zip(
            range(count),
            tasks.before_launch_us.tolist(),
            tasks.launch_us.tolist(),
            tasks.launches.tolist(),
            tasks.device_us.tolist(),
            tasks.stream.tolist(),
            (tasks.host_wait & self._waits).tolist(),
            strict=True,
        )
        for call, before_us, launch_us, launches, device_us, on, waits in rows:
            if on != stream:
                self._stream_end[stream] = stream_end
                stream = on
                stream_end, ends = self._stream_end.get(stream, 0.0), self._ends.setdefault(stream, [])
            host += before_us
            if launches:
                gap = exposed = 0.0
                first = -1.0
                if launches > 1:
                    launch_us /= launches
                    device_us /= launches
                for _ in range(launches):
                    # Launches of a stream end one after the other: the queue is full while the one so far back runs.
                    if len(ends) >= depth and ends[-depth] > host:
                        host = ends[-depth]
                    host += launch_us
                    start = host
                    if stream_end > host:
                        start = stream_end
                    stream_end = start + device_us
                    ends.append(stream_end)
                    if launched is not None:
                        launched.append(Launched(call, host, start, stream_end))
                    if first < 0:
                        first = start
                    if start > clock:
                        gap += start - clock
                        exposed += stream_end - start
                        clock = stream_end
                    elif stream_end > clock:
                        exposed += stream_end - clock
                        clock = stream_end
                starts[call] = first
                ends_us.append(stream_end)
                gaps.append(gap)
                exposures.append(exposed)
            else:
                host += launch_us
                starts[call] = host
                if stream_end > host:
                    starts[call] = stream_end
            if waits:
                host = max(stream_end, host) + sync_us
            host_ends[call] = host
        self._stream_end[stream] = stream_end
        self.host_clock, self.device_clock = host + self._tail_us, clock
        launching = tasks.launches > 0
        host_end, start_us = np.array(host_ends), np.array(starts)
        end_us, gap_us, exposed_us = start_us.copy(), np.zeros(count), np.zeros(count)
        end_us[launching], gap_us[launching], exposed_us[launching] = ends_us, gaps, exposures
        return Spans(
            np.concatenate(([begin], host_end))[:count],
            host_end,
            start_us,
            end_us,
            np.where(launching, tasks.device_us, 0.0),
            gap_us,
            exposed_us,
            np.zeros(count),
        )


def _charge_waits(tasks: _Tasks, spans: Spans, free_gap_us: Floats) -> None:
    """Move idle time that vanishes without the waits to the last call before it that waited."""
    waiters = np.maximum.accumulate(np.where(tasks.host_wait, np.arange(len(spans)), -1))
    waiter = np.concatenate(([-1], waiters[:-1]))
    moved = np.where(waiter >= 0, np.maximum(spans.gap_us - free_gap_us, 0.0), 0.0)
    spans.gap_us -= moved
    np.add.at(spans.wait_us, waiter[waiter >= 0], moved[waiter >= 0])
