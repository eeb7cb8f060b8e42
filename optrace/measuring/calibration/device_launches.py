"""Single ops timed on the GPU, launch by launch: each with its operands out of the L2, and again right after.

Ops run in batches under torch's profiler, which gives each kernel's duration. A batch is recorded once and profiled
twice; the quicker time of each launch counts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from optrace.cost.device import launches_of
from optrace.cost.device.kernel import MEMSET
from optrace.cost.device.kernel import Launch as Modelled
from optrace.cost.pricing import OpCost, price
from optrace.cost.profiles import Pricing
from optrace.graph import OpGraph, OpNode
from optrace.measuring.calibration.device_cases import Call, DeviceCase
from optrace.measuring.calibration.fit import TimedLaunch
from optrace.measuring.launches import Profiled, profiled, quicker
from optrace.measuring.record import Launch
from optrace.tracing import Session

#: Cases of a batch, and the share of the GPU's free memory that their operands may take.
_BATCH, _MEMORY_SHARE = 40, 0.5
#: What is read to push everything out of the L2: this many times its size.
_FLUSH = 4


@dataclass(frozen=True, slots=True)
class Sweep:
    """What was timed: launches, cases that ran, those that failed with why, and those that no time was left for."""

    timed: tuple[TimedLaunch, ...]
    cases: int
    failed: tuple[tuple[str, str], ...]
    left_out: int


def sweep(
    session: Session,
    pricing: Pricing,
    cases: Sequence[DeviceCase],
    *,
    seconds: float,
    progress: Callable[[int], None],
) -> Sweep:
    """Time ``cases`` batch by batch until ``seconds`` are over; ``progress`` is given the cases done so far.
    ``session`` is on the GPU of ``pricing``."""
    end = time.monotonic() + seconds
    flushing = torch.ones(_FLUSH * pricing.gpu.l2_bytes // 4, device=session.device)
    timed: list[TimedLaunch] = []
    failed: list[tuple[str, str]] = []
    done = 0
    longest = 0.0
    with torch.no_grad():
        for calls, seen in _batches(cases, failed):
            start = time.monotonic()
            graph, launched = _profiled(session, flushing, calls)
            timed += timed_launches(graph, pricing, launched)
            calls.clear()
            done = seen
            progress(done)
            longest = max(longest, time.monotonic() - start)
            if time.monotonic() + longest > end:
                break
    session.forget()
    return Sweep(tuple(timed), done - len(failed), tuple(failed), len(cases) - done)


def _batches(cases: Sequence[DeviceCase], failed: list[tuple[str, str]]) -> Iterator[tuple[list[Call], int]]:
    """Calls with their operands made, that ran once; and how many cases were looked at so far."""
    free = torch.cuda.mem_get_info()[0]
    calls: list[Call] = []
    for number, case in enumerate(cases, 1):
        try:
            call = case.build()
            call()
            torch.cuda.synchronize()
        except (RuntimeError, AttributeError, TypeError) as error:  # not of this GPU, or not of this torch
            failed.append((case.name, str(error).partition("\n")[0]))
            continue
        calls.append(call)
        del call
        if len(calls) == _BATCH or torch.cuda.memory_allocated() > _MEMORY_SHARE * free:
            yield calls, number
            calls = []
    if calls:
        yield calls, len(cases)


def _profiled(
    session: Session, flushing: torch.Tensor, calls: Sequence[Call]
) -> tuple[OpGraph, list[list[Launch]]]:
    """The calls of a batch, each cold and warm, and what each launched."""

    def run() -> None:
        for call in calls:
            flushing.sum()
            call()
            call()

    session.forget()
    with session.recording():
        run()
    torch.cuda.synchronize()
    graph = session.graph
    twice = (Profiled(), Profiled())
    for found in twice:
        with profiled(session, len(graph), found):
            run()
    return graph, quicker(*twice)


def timed_launches(
    graph: OpGraph, pricing: Pricing, launched: Sequence[Sequence[Launch]]
) -> Iterator[TimedLaunch]:
    """What each call of ``graph`` launched by the model, with the time of its counterpart in ``launched``; nothing of
    calls where the two don't line up."""
    target = pricing.target(graph.info)
    for node, cost, real in zip(graph, price(graph, pricing).costs, launched, strict=True):
        modelled = [launch for launch in launches_of(node, cost.work, target) if launch is not MEMSET]
        touched = sum(launch.nbytes for launch in modelled)
        crossing = min(1.5, _hbm_bytes(cost) / touched) if touched else 0.0
        for launch, truth in _lined_up(node, modelled, [found for found in real if found.kind != "memset"]):
            yield TimedLaunch(launch, launch.nbytes * crossing, truth.us)


def _hbm_bytes(cost: OpCost) -> int:
    return cost.traffic.read + cost.traffic.written


#: Parts of a convolution by the names of their kernels: copies between layouts; the product itself.
_LAYOUT = re.compile("nchwToNhwc|nhwcToNchw")
_MAIN = re.compile("gemm|convolve|cutlass|conv2d|conv_dep|wgrad|dgrad|fprop|nvjet|gemv|winograd")
_BESIDE = re.compile("init_device|ReduceSplitK|splitKreduce|wgrad_nchw_helper|computeOffsets")


def _lined_up(
    node: OpNode, modelled: Sequence[Modelled], real: Sequence[Launch]
) -> Iterator[tuple[Modelled, Launch]]:
    """By their order; of a convolution, whose small kernels come and go with its algorithm, part by part."""
    parts: Sequence[tuple[Sequence[Modelled], Sequence[Launch]]]
    if "convolution" in node.op:
        layouts = [launch for launch in modelled if launch.kind.startswith("layout")]
        mains = [launch for launch in modelled if launch.kind.startswith(("conv", "depthwise", "warp"))]
        parts = (
            (layouts, [launch for launch in real if _LAYOUT.search(launch.name)]),
            (
                mains,
                [found for found in real if _MAIN.search(found.name) and not _BESIDE.search(found.name)],
            ),
        )
    else:
        parts = ((modelled, real),)
    for expected, found in parts:
        if len(expected) == len(found):
            yield from zip(expected, found, strict=True)
