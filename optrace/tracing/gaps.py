"""Timing the program's own Python: a run of its own, in which a watcher that does next to nothing looks at the clock.

A recorder would not do: it leaves the processor's caches cold for the program, which then takes several times as long.
What Python and torch take to get to the watcher and back is measured by a call that is made watched and not, and left
out. Between a network's calls even that watcher costs more, half of the step's time and as much again: there what passed
is taken as a share of the watched step, and of what the step takes while nobody watches.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Any

import torch

from optrace.graph import OpGraph
from optrace.tracing.calls import Watching
from optrace.tracing.clock import quickest_us


@dataclass(frozen=True, slots=True)
class Gaps:
    """What passed on the host before each call (of the overloads ``ops``) and after the last, and what the calls
    themselves took (``inside_us``), in microseconds."""

    ops: tuple[str, ...]
    before_us: tuple[float, ...]
    tail_us: float
    inside_us: tuple[float, ...] = ()

    @property
    def passed_us(self) -> float:
        """Outside of the calls."""
        return sum(self.before_us) + self.tail_us

    @property
    def took_us(self) -> float:
        """The step."""
        return self.passed_us + sum(self.inside_us)

    def quicker(self, times: float) -> Gaps:
        """The same on a host so many times as quick."""
        return Gaps(
            self.ops,
            tuple(us / times for us in self.before_us),
            self.tail_us / times,
            tuple(us / times for us in self.inside_us),
        )


@dataclass(frozen=True, slots=True)
class Watch:
    """What being watched adds between two calls and inside of one, microseconds."""

    between_us: float = 0.0
    inside_us: float = 0.0


class _GapWatcher:
    """Looks at the clock before and after each call."""

    def __init__(self) -> None:
        self.ops: list[Any] = []
        self.times_ns: list[int] = [perf_counter_ns()]

    def call(self, run: Callable[..., Any], func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the call between two looks."""
        self.times_ns.append(perf_counter_ns())
        self.ops.append(func)
        result = run(*args, **kwargs)
        self.times_ns.append(perf_counter_ns())
        return result


@contextmanager
def timed_gaps(watching: Watching, found: Callable[[Gaps], object], added: Watch) -> Iterator[None]:
    """Watch the step that runs inside and tell ``found`` what passed between its calls, less what watching ``added``."""
    watcher = _GapWatcher()
    with watching(watcher):
        yield
        watcher.times_ns.append(perf_counter_ns())
    left, come = watcher.times_ns[0::2], watcher.times_ns[1::2]
    between = [max((to - since) / 1000 - added.between_us, 0.0) for since, to in zip(left, come, strict=True)]
    inside = [
        max((to - since) / 1000 - added.inside_us, 0.0) for since, to in zip(come, left[1:], strict=False)
    ]
    found(Gaps(tuple(str(op) for op in watcher.ops), tuple(between[:-1]), between[-1], tuple(inside)))


def watch_of(watching: Watching, device: str) -> Watch:
    """What being watched adds: a small view, made watched and not. What the view takes counts as between calls."""
    view = torch.ones(8, device=device).detach
    turns = 50

    runs: list[Gaps] = []
    for _ in range(5):
        with timed_gaps(watching, runs.append, Watch()):
            for _ in range(turns):
                view()
    quickest = min(runs, key=lambda run: run.passed_us)
    return Watch(
        max(quickest.passed_us / turns - quickest_us(view, turns=turns), 0.0),
        statistics.median(quickest.inside_us),
    )


def inside_us(graph: OpGraph, runs: Sequence[Gaps], issue_us: float) -> list[float]:
    """What each call takes of a step of ``issue_us`` on the host, by the ``runs`` that made the same calls, median; empty
    where none did."""
    same, scale = _same(graph, runs, issue_us)
    return [
        round(statistics.median(times) * scale, 2)
        for times in zip(*(run.inside_us for run in same), strict=True)
    ]


def _same(graph: OpGraph, runs: Sequence[Gaps], issue_us: float) -> tuple[list[Gaps], float]:
    """The runs that made the calls of ``graph``, and what takes their times to those of a step of ``issue_us``."""
    ops = tuple(graph.facts(call).name for call in range(len(graph)))
    same = [run for run in runs if run.ops == ops]
    took_us = statistics.median(run.took_us for run in same) if same else 0.0
    return same, issue_us / max(took_us, 1e-9)


def keep_times(graph: OpGraph, runs: Sequence[Gaps], *, loop_us: float, issue_us: float) -> None:
    """Write into ``graph`` what passed between its calls in a step of ``issue_us`` on the host, by the ``runs`` that made
    the same calls; nothing where none did. ``loop_us``: a turn of the reference loop on this host.

    A single pass may be disturbed: by the first use of a cache, a collection of garbage, another process. Each call
    takes the median of the passes through its stretch of the program, which is named by the op and the source of its
    call and the source of the call before.
    """
    same, scale = _same(graph, runs, issue_us)
    if not same:
        return
    stretches: dict[tuple[int, int, int], list[int]] = {}
    before = -1
    for call in range(len(graph)):
        source = graph.source_of(call)
        stretches.setdefault((before, source, graph.op_of(call)), []).append(call)
        before = source
    for calls in stretches.values():
        typical = statistics.median(run.before_us[call] for run in same for call in calls)
        for call in calls:
            graph.set_python_us(call, round(typical * scale, 2))
    tail_us = statistics.median(run.tail_us for run in same) * scale
    graph.info = replace(graph.info, tail_us=round(tail_us, 2), python_loop_us=round(loop_us, 3))
