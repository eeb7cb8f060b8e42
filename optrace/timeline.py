"""The host/device queue: when each call is issued, starts and ends, and what the wall clock is made of.

One host clock, one device clock a stream. A call's k-th launch is issued at the end of its dispatch plus
k launch costs; it starts once it is issued and the launch before it on its stream has ended. The device
time of a call is spread evenly over its launches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from optrace.cost.host import HostTime
from optrace.cost.pricing import PricedGraph


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
    ``b2b_us`` is one of many steps issued back to back; ``host_tail_us`` is the host still working after
    the last kernel.
    """

    spans: tuple[Span, ...]
    wall_us: float
    issue_us: float
    b2b_us: float
    host_tail_us: float


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
    return simulate(
        list(tasks_of(priced)),
        sync_us=host.sync_us,
        queue_depth=host.queue_depth,
        tail_us=priced.tail_us,
    )


def launches(priced: PricedGraph) -> list[Launched]:
    """Each launch of a priced graph as ``replay`` runs it, in the order in which the host issues them."""
    host = priced.pricing.host
    launched: list[Launched] = []
    _Queue(host.sync_us, host.queue_depth, priced.tail_us, launched=launched).run(list(tasks_of(priced)))
    return launched


def simulate(
    tasks: Sequence[Task], *, sync_us: float = 0.0, queue_depth: int = 1024, tail_us: float = 0.0
) -> Timeline:
    """Replay ``tasks`` through the queue.

    ``sync_us``: what a wait costs the host beyond the waiting. ``queue_depth``: launches that may be
    pending on a stream before the host has to wait for the oldest. ``tail_us``: the host's time after the last task.
    """
    queue = _Queue(sync_us, queue_depth, tail_us)
    spans = queue.run(tasks)
    issue, device_end = queue.host_clock, queue.device_clock
    wall = max(issue, device_end)
    if any(task.host_wait for task in tasks):
        spans = _charge_waits(tasks, spans, _Queue(sync_us, queue_depth, tail_us, waits=False).run(tasks))
        queue.run(tasks)
        before = queue.clock
        queue.run(tasks)
        period = queue.clock - before
    else:
        # Without a wait, host and device only push each other forward: the slower one sets the pace.
        streams: dict[int, float] = {}
        for task in tasks:
            streams[task.stream] = streams.get(task.stream, 0.0) + task.device_us
        period = max(issue, *streams.values()) if streams else issue
    return Timeline(tuple(spans), wall, issue, period, wall - device_end)


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
        self._stream_end: dict[int, float] = {}
        self._pending: dict[int, deque[float]] = {}

    @property
    def clock(self) -> float:
        return max(self.host_clock, self.device_clock)

    def run(self, tasks: Sequence[Task]) -> list[Span]:
        spans = []
        for number, task in enumerate(tasks):
            host_start = self.host_clock
            self.host_clock += task.host.before_launch_us
            if task.launches:
                start, end, gap, exposed = self._launch(number, task)
            else:
                self.host_clock += task.host.launch_us
                start = end = max(self.host_clock, self._stream_end.get(task.stream, 0.0))
                gap = exposed = 0.0
            if task.host_wait and self._waits:
                self.host_clock = max(self.host_clock, self._stream_end.get(task.stream, 0.0)) + self._sync_us
            spans.append(
                Span(
                    host_start,
                    self.host_clock,
                    start,
                    end,
                    task.device_us if task.launches else 0.0,
                    gap,
                    exposed,
                )
            )
        self.host_clock += self._tail_us
        return spans

    def _launch(self, number: int, task: Task) -> tuple[float, float, float, float]:
        """First start, last end, idle device time before and device time charged, over all launches."""
        pending = self._pending.setdefault(task.stream, deque())
        stream_end = self._stream_end.get(task.stream, 0.0)
        first = -1.0
        gap = exposed = 0.0
        for _ in range(task.launches):
            while pending and pending[0] <= self.host_clock:
                pending.popleft()
            if len(pending) >= self._depth:
                self.host_clock = max(self.host_clock, pending.popleft())
            self.host_clock += task.host.launch_us / task.launches
            start = max(self.host_clock, stream_end)
            stream_end = start + task.device_us / task.launches
            pending.append(stream_end)
            if self._launched is not None:
                self._launched.append(Launched(number, self.host_clock, start, stream_end))
            first = start if first < 0 else first
            gap += max(0.0, start - self.device_clock)
            exposed += max(0.0, stream_end - max(start, self.device_clock))
            self.device_clock = max(self.device_clock, stream_end)
        self._stream_end[task.stream] = stream_end
        return first, stream_end, gap, exposed


def _charge_waits(tasks: Sequence[Task], spans: list[Span], without: list[Span]) -> list[Span]:
    """Move idle time that vanishes without the waits to the last call before it that waited."""
    gaps = [span.gap_us for span in spans]
    waits = [0.0] * len(spans)
    waiter = -1
    for call, (task, span, free) in enumerate(zip(tasks, spans, without, strict=True)):
        if waiter >= 0 and span.gap_us > free.gap_us:
            waits[waiter] += span.gap_us - free.gap_us
            gaps[call] = free.gap_us
        if task.host_wait:
            waiter = call
    return [
        Span(s.host_start_us, s.host_end_us, s.start_us, s.end_us, s.busy_us, gap, s.exposed_us, wait)
        for s, gap, wait in zip(spans, gaps, waits, strict=True)
    ]
