"""Records of measured programs: JSON lines, a machine and then a program a line, plain or gzipped.

A program has the calls that a dispatch mode saw, each with the kernels, copies and memsets it launched and
their times, and the step's measured times and memory. ``docs/record.md`` documents the format.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from optrace.graph import OpFacts, OpGraph, Source, Storage, TraceInfo
from optrace.graph.nouns import PHASES
from optrace.graph.opgraph import HOLE, READS, WRITES, Layout
from optrace.tracing.facts import facts_of, overload_named

S = TypeVar("S")


class RecordError(ValueError):
    """The file is no record of measured programs."""


class Launch(msgspec.Struct, frozen=True):
    """One kernel, copy or memset: what it is, its name and device time."""

    kind: str
    name: str
    us: float
    bytes: int | None = None
    grid: tuple[int, int, int] | None = None


class _Call(msgspec.Struct):
    op: str
    args: list[Any]
    kwargs: dict[str, Any]
    out: Any
    kernels: tuple[Launch, ...]
    freed: tuple[int, ...] | None = None
    phase: str | None = None
    stream: int = 0
    module: str | None = None
    pre_us: float | None = None


class _Program(msgspec.Struct):
    name: str
    ops: list[_Call]
    issue_us: float | None = None
    wall_us: float | None = None
    b2b_us: float | None = None
    tail_us: float | None = None
    python_loop_us: float | None = None
    gpu_us: float | None = None
    mem_base: int | None = None
    mem_peak: int | None = None
    workspace_bytes: int | None = None
    float32_matmul: str = ""
    float32_convolution: str = ""


class Machine(msgspec.Struct, frozen=True):
    """What the programs ran on."""

    device: str
    torch: str
    host: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One program as it ran: its calls as a graph, what each launched, and the step's measured figures.

    ``launches[i]`` belongs to call i. ``freed_known``: the record says when storages were freed; otherwise a
    storage made in the run is taken to be freed after its last use.
    """

    name: str
    graph: OpGraph
    launches: tuple[tuple[Launch, ...], ...]
    wall_us: float | None
    issue_us: float | None
    b2b_us: float | None
    device_us: float | None
    memory_base: int | None
    memory_peak: int | None
    workspace_bytes: int | None
    freed_known: bool


@dataclass(frozen=True, slots=True)
class DramKernel:
    """Bytes through HBM of one kernel, by hardware counters."""

    name: str
    read: int
    written: int


def read_machine(path: Path) -> Machine:
    """The first line of a record. Raises ``RecordError`` where it is none."""
    return _decode(path, 1, next(_lines(path), b""), Machine)


def read_runs(path: Path) -> Iterator[MeasuredRun]:
    """The programs of a record, one at a time. Raises ``RecordError`` on a line that is none."""
    lines = _lines(path)
    machine = _decode(path, 1, next(lines, b""), Machine)
    for number, line in enumerate(lines, 2):
        if line.strip():
            yield _run(_decode(path, number, line, _Program), machine)


def read_dram(path: Path) -> dict[str, list[DramKernel]]:
    """HBM traffic by program, kernels in launch order (copies and memsets are not listed)."""
    lines = _lines(path)
    _decode(path, 1, next(lines, b""), Machine)
    rows = [_decode(path, number, line, _Dram) for number, line in enumerate(lines, 2)]
    return {
        row.name: [DramKernel(_text(k.name), k.dram_read, k.dram_write) for k in row.kernels] for row in rows
    }


class _DramKernel(msgspec.Struct):
    name: Any
    dram_read: int
    dram_write: int


class _Dram(msgspec.Struct):
    name: str
    kernels: list[_DramKernel]


def _text(name: Any) -> str:
    return str(name[0] if isinstance(name, list) else name)


def _lines(path: Path) -> Iterator[bytes]:
    """Lines of a file, unpacked where it is gzipped."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from file
    except (OSError, EOFError) as error:
        raise RecordError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def _decode(path: Path, number: int, line: bytes, kind: type[S]) -> S:
    try:
        # Arguments may be Infinity, which Python's json writes and strict JSON does not know.
        return msgspec.convert(json.loads(line), type=kind)
    except (ValueError, msgspec.ValidationError) as error:
        raise RecordError(
            f"{path}, line {number}: no {kind.__name__.strip('_').lower()} of a record ({error})"
        ) from None


#: Questions and marks, which no backend executes.
_LEFT_OUT = ("prim.", "profiler.")


def _run(program: _Program, machine: Machine) -> MeasuredRun:
    graph = OpGraph(
        TraceInfo(
            program=program.name,
            mode="cuda",
            torch=machine.torch,
            gpu=machine.device,
            tail_us=program.tail_us,
            python_loop_us=program.python_loop_us,
            float32_matmul=program.float32_matmul,
            float32_convolution=program.float32_convolution,
        )
    )
    calls = [call for call in program.ops if not call.op.startswith(_LEFT_OUT)]
    storages: dict[int, int] = {}
    source = graph.sources.add(Source())

    def encode(value: Any, found: list[int]) -> object:
        if isinstance(value, dict):
            if "t" in value:
                found.append(tensor(value["t"]))
                return HOLE
            return repr(value)
        if isinstance(value, list):
            return tuple(encode(item, found) for item in value)
        return value

    def tensor(row: list[Any]) -> int:
        shape, stride, dtype, device, storage, nbytes, offset = row
        if storage is not None and storage not in storages:
            storages[storage] = graph.add_storage(Storage(nbytes or 0, device))
        layout = Layout(tuple(shape), tuple(stride or (0,) * len(shape)), dtype, device)
        return graph.add_tensor(graph.layouts.add(layout), storages.get(storage, -1), offset or 0)

    for call in calls:
        facts = _facts(call.op)
        operands: list[int] = []
        flags: list[int] = []
        names = (*facts.arg_names, *("",) * len(call.args))
        args = []
        for value, name in zip(call.args, names, strict=False):
            args.append(encode(value, operands))
            flags.extend([_flags(facts, name)] * (len(operands) - len(flags)))
        kwargs = []
        for name, value in call.kwargs.items():
            kwargs.append((name, encode(value, operands)))
            flags.extend([_flags(facts, name)] * (len(operands) - len(flags)))
        outputs: list[int] = []
        out = encode(call.out, outputs)
        number = graph.add_call(
            graph.add_op_facts(facts),
            graph.add_template(tuple(args), tuple(kwargs), out),
            operands,
            flags,
            outputs,
            source=source,
            phase=next((phase for phase in PHASES if phase == call.phase), "other"),
            stream=call.stream,
            python_us=-1.0 if call.pre_us is None else call.pre_us,
        )
        for storage in call.freed or ():
            if storage in storages:
                graph.add_free(storages[storage], number)
    freed_known = any(call.freed is not None for call in calls)
    if freed_known:
        _add_what_the_step_before_left(graph)
    else:
        _free_after_last_use(graph)
    return MeasuredRun(
        name=program.name,
        graph=graph,
        launches=tuple(call.kernels for call in calls),
        wall_us=program.wall_us,
        issue_us=program.issue_us,
        b2b_us=program.b2b_us,
        device_us=program.gpu_us,
        memory_base=program.mem_base,
        memory_peak=program.mem_peak,
        workspace_bytes=program.workspace_bytes,
        freed_known=freed_known,
    )


def _flags(facts: OpFacts, argument: str) -> int:
    if argument in facts.out_args:
        return WRITES
    return READS | WRITES if argument in facts.mutates else READS


def _add_what_the_step_before_left(graph: OpGraph) -> None:
    """A warm step leaves as much as it found. What it made and kept (gradients) the step before had made and kept
    too: it is among the tensors that the calls use and free (a cache that is replaced), or it was freed before the
    first call, which the calls do not show."""
    freed = {storage for call in range(len(graph)) for storage in graph.freed_after(call)}
    made = {graph.tensor_storage(tensor) for call in range(len(graph)) for tensor in graph.outputs(call)}
    replaced = Counter(graph.storages[storage].nbytes for storage in freed - made)
    seen: set[int] = set()
    for call in range(len(graph)):
        seen.update(graph.tensor_storage(tensor) for tensor in graph.operands(call))
        for tensor in graph.outputs(call):
            storage = graph.tensor_storage(tensor)
            if storage >= 0 and storage not in seen and storage not in freed:
                kept = graph.storages[storage]
                if replaced[kept.nbytes]:
                    replaced[kept.nbytes] -= 1
                else:
                    graph.add_free(graph.add_storage(kept), -1)
            seen.add(storage)


def _free_after_last_use(graph: OpGraph) -> None:
    """Free what the run made after the last call that touched it; what stood before it stays."""
    made: set[int] = set()
    last: dict[int, int] = {}
    for call in range(len(graph)):
        for tensor in graph.operands(call):
            last[graph.tensor_storage(tensor)] = call
        for tensor in graph.outputs(call):
            storage = graph.tensor_storage(tensor)
            if storage not in last:
                made.add(storage)
            last[storage] = call
    results = (
        {graph.tensor_storage(tensor) for tensor in graph.outputs(len(graph) - 1)} if len(graph) else set()
    )
    for storage, call in sorted(last.items(), key=lambda item: item[1]):
        if storage in made and storage not in results:
            graph.add_free(storage, call)


def _facts(name: str) -> OpFacts:
    """The schema of an overload by name; of one that this torch does not have, the name alone."""
    found = overload_named(name)
    return OpFacts(name) if found is None else facts_of(found)
