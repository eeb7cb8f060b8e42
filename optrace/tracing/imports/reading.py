"""A trace's bytes to a graph and the times that were measured with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from optrace.graph import OpGraph
from optrace.graph.foreign import NotJsonError, unpacked, writer_of
from optrace.graph.measured import MeasuredLaunch, MeasuredRun
from optrace.tracing.imports.building import build
from optrace.tracing.imports.execution import read_execution
from optrace.tracing.imports.kineto import read_kineto
from optrace.tracing.imports.seen import SeenRun, TraceFileError


@dataclass(frozen=True, slots=True)
class Imported:
    """``kind`` says what wrote the trace; ``gpu`` is the GPU's name, empty where it is not known; ``measured`` is None
    where the trace holds no times of a GPU."""

    graph: OpGraph
    kind: str
    gpu: str = ""
    measured: MeasuredRun | None = None


def read_trace(data: bytes, program: str = "") -> Imported:
    """The calls of a profiler's or an execution trace (JSON, also gzipped), with the times it holds.

    ``program`` is what the graph is called. Raises ``TraceFileError`` on anything else.
    """
    try:
        data = unpacked(data)
        writer = writer_of(data)
    except NotJsonError as error:
        raise TraceFileError(str(error)) from None
    if writer == "optrace graph":
        raise TraceFileError("a graph.json of optrace, packed: unpack it first (gunzip)")
    if writer == "optrace timeline":
        raise TraceFileError(
            "a timeline that optrace wrote, of predicted times: read the program's graph.json"
        )
    if writer is None:
        raise TraceFileError(
            'neither a profiler\'s trace ("traceEvents") nor an execution trace ("schema" and "nodes")'
        )
    try:
        document = msgspec.json.decode(data)
        run = read_kineto(document) if writer == "profiler" else read_execution(document)
        graph, measured = build(run, program), _measured(run)
    except TraceFileError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise TraceFileError(f"inconsistent: {error!r}") from None
    named = run.device if run.device != "a GPU" else ""
    return Imported(graph, run.kind, named, measured)


def _measured(run: SeenRun) -> MeasuredRun | None:
    """Times from the start of the first call."""
    launches = [launch for call in run.calls for launch in call.launches]
    if not run.timed or not launches:
        return None
    starts = [call.host_us[0] for call in run.calls if call.host_us is not None]
    zero = min([*starts, *(launch.start_us for launch in launches)])
    ends = [call.host_us[1] for call in run.calls if call.host_us is not None]
    wall = max([*ends, *(launch.end_us for launch in [*launches, *run.unplaced])]) - zero
    return MeasuredRun(
        device=run.device,
        launches=_launches(run, zero),
        host_us=[
            None if call.host_us is None else (call.host_us[0] - zero, call.host_us[1] - zero)
            for call in run.calls
        ],
        wall_us=wall,
        unplaced_us=sum(launch.end_us - launch.start_us for launch in run.unplaced),
    )


def _launches(run: SeenRun, zero: float) -> Sequence[MeasuredLaunch]:
    found = [
        MeasuredLaunch(
            number,
            launch.kind,
            launch.name,
            launch.stream,
            launch.start_us - zero,
            launch.end_us - zero,
            None if launch.issued_us is None else launch.issued_us - zero,
            launch.nbytes,
        )
        for number, call in enumerate(run.calls)
        for launch in call.launches
    ]
    return sorted(found, key=lambda launch: launch.start_us)
