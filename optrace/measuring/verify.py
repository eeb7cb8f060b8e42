"""The cures tried out on a CUDA machine: the same step in eager, from a CUDA graph, and compiled."""

from __future__ import annotations

import contextlib
import gc
import signal
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from optrace.measuring.launches import LAUNCH_CATEGORIES, trace_events
from optrace.tracing.session import session_is_open

Step = Callable[[], object]


class VerifyError(RuntimeError):
    """Nothing can be measured here."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One way to run the step, as measured. ``failed`` says why there is no figure; ``prepare_s`` is what capture or
    compilation took."""

    name: str
    wall_us: float | None = None
    device_us: float | None = None
    launches: int | None = None
    peak_bytes: int | None = None
    prepare_s: float = 0.0
    failed: str = ""


def verify(
    step: Step,
    *,
    stage_s: float = 120.0,
    repeats: int = 30,
    progress: Callable[[str], None] = lambda _name: None,
) -> tuple[Measured, ...]:
    """Run ``step`` in eager, as a CUDA graph, under ``torch.compile``, and under it with
    ``mode="reduce-overhead"``; the names are those of the scoreboard of cures. What the program compiles itself
    runs in eager in the first two, as it does in a trace.

    A stage that raises, or takes longer than ``stage_s`` seconds, is told in its row and the next one is run. The
    limit holds in the main thread, between Python's instructions: a call that hangs inside CUDA is waited for.

    Raises ``VerifyError`` without a CUDA GPU, and while a session is open: nothing is compiled in one.
    """
    if session_is_open():
        raise VerifyError("the cures are measured after the trace: end the session first")
    if not torch.cuda.is_available():
        raise VerifyError("the cures can be measured only on a CUDA GPU, and this machine has none")
    rows: dict[str, Measured] = {}
    # A capture that fails may leave the process in disorder: it comes last.
    for name in sorted(_STAGES, key=lambda name: _STAGES[name] is _captured):
        progress(name)
        rows[name] = _stage(name, _STAGES[name], step, stage_s, repeats)
    return tuple(rows[name] for name in _STAGES)


def _stage(name: str, prepare: Callable[[Step], Step], step: Step, stage_s: float, repeats: int) -> Measured:
    gc.collect()  # what the stage before left in cycles would stand in this one's peak
    began = time.perf_counter()
    try:
        with _limit(stage_s), torch.compiler.set_stance(_STANCES[name]):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            ready = prepare(step)
            for _ in range(3):
                ready()
            torch.cuda.synchronize()
            took = time.perf_counter() - began
            if name in _PEAK_OF_A_STEP:
                torch.cuda.reset_peak_memory_stats()
                ready()
                torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated()
            wall = _wall(ready, repeats)
            device, launches = _on_device(ready)
            return Measured(name, wall, device, launches, peak, took)
    except (
        Exception
    ) as error:  # whatever the program, the compiler or the driver raises is the stage's result
        return Measured(
            name,
            prepare_s=time.perf_counter() - began,
            failed=f"{type(error).__name__}: {_first_line(error)}",
        )
    finally:
        torch.compiler.reset()


def _eager(step: Step) -> Step:
    return step


def _captured(step: Step) -> Step:
    """The step's launches, captured after a warm-up on a stream of its own as CUDA asks for."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            step()
    except Exception:
        _end_of_capture()
        raise
    return graph.replay


def _end_of_capture() -> None:
    """After a capture that failed the random generator still thinks that it is captured; the end of one that does
    not fail tells it otherwise."""
    with contextlib.suppress(RuntimeError):
        torch.cuda.synchronize()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.zeros(1, device="cuda")


def _compiled(step: Step) -> Step:
    return torch.compile(step)


def _compiled_with_graphs(step: Step) -> Step:
    return torch.compile(step, mode="reduce-overhead")


_STAGES: Mapping[str, Callable[[Step], Step]] = {
    "eager": _eager,
    "+ CUDA graph": _captured,
    "+ fusion": _compiled,
    "+ both": _compiled_with_graphs,
}

#: What compiled functions do: those of the program itself are no part of what is compared.
_STANCES: Mapping[str, str] = {
    "eager": "force_eager",
    "+ CUDA graph": "force_eager",
    "+ fusion": "default",
    "+ both": "default",
}

#: A replay allocates nothing: what its capture took is what it holds.
_PEAK_OF_A_STEP = frozenset({"eager", "+ fusion", "+ both"})


def _wall(step: Step, repeats: int, seconds: float = 2.0) -> float:
    """Median microseconds of a step from an empty queue to a synchronize."""
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < repeats and (time.perf_counter() < end or len(found) < 3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - start) * 1e6)
    return statistics.median(found)


def _on_device(step: Step) -> tuple[float, int]:
    """Microseconds on the device and launches of one step, by the profiler."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with warnings.catch_warnings(), torch.profiler.profile(activities=activities) as profiler:
        # Said once a process of profilers that run more than one cycle; this one runs one.
        warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
        step()
        torch.cuda.synchronize()
    launches = [event["dur"] for event in trace_events(profiler) if event.get("cat") in LAUNCH_CATEGORIES]
    return sum(launches), len(launches)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise ``TimeoutError`` once the time is over, where this is the main thread of a system with timers."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(*_: object) -> None:
        raise TimeoutError(f"took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
