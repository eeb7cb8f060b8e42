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


def typical(graph: OpGraph, runs: Sequence[Gaps], issue_us: float) -> Gaps | None:
    """A step of ``issue_us`` on the host that makes the calls of ``graph``, by the ``runs`` that made the same; None
    where none did, or nothing took any time.

    A single pass may be disturbed: by the first use of a cache, a collection of garbage, another process. What passes before a
    call is the median of the passes through its stretch of the program, which is named by the op and the source of its
    call and the source of the call before; what the call takes is the median of the runs. Medians make up less than the
    whole, so all are scaled until they do.
    """
    ops = tuple(graph.facts(call).name for call in range(len(graph)))
    same = [run for run in runs if run.ops == ops]
    if not same:
        return None
    stretches: dict[tuple[int, int, int], list[int]] = {}
    before = -1
    for call in range(len(graph)):
        source = graph.source_of(call)
        stretches.setdefault((before, source, graph.op_of(call)), []).append(call)
        before = source
    before_us = [0.0] * len(graph)
    for calls in stretches.values():
        us = statistics.median(run.before_us[call] for run in same for call in calls)
        for call in calls:
            before_us[call] = us
    found = Gaps(
        ops,
        tuple(before_us),
        statistics.median(run.tail_us for run in same),
        tuple(statistics.median(times) for times in zip(*(run.inside_us for run in same), strict=True)),
    )
    return found.quicker(found.took_us / issue_us) if found.took_us and issue_us else None


def keep_times(graph: OpGraph, step: Gaps, *, loop_us: float) -> None:
    """Write into ``graph`` what passed between its calls in a ``step``. ``loop_us``: a turn of the reference loop on this
    host."""
    for call, us in enumerate(step.before_us):
        graph.set_python_us(call, round(us, 2))
    graph.info = replace(graph.info, tail_us=round(step.tail_us, 2), python_loop_us=round(loop_us, 3))
