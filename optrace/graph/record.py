"""The record part of ``graph.json``: an ``OpGraph`` as plain data, and back.

``docs/format.md`` documents the fields. What a report adds (costs, times, totals) is computed from the
record again when a file is read, so it is skipped here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec

from optrace.graph.nouns import (
    Frame,
    Mark,
    MarkKind,
    ModuleCall,
    OpFacts,
    Phase,
    Source,
    Storage,
    TraceInfo,
)
from optrace.graph.opgraph import HOLE, READS, WRITES, CallTemplate, Layout, OpGraph

FORMAT = "optrace.graph"
VERSION = 1


#: A size, a place in a list, a number of bytes: what the columns of a graph can hold.
_Whole: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


#: Microseconds that were timed: less than thirty years.
_Time: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e15)]

#: More than any device holds or gets through: sums over a run of such tensors still fit 64 bits.
_MOST_BYTES = 2**50
_MOST_ELEMENTS = 2**45

#: Lists in an argument's lists. ATen has two at most.
_MOST_NESTED = 16


class GraphFormatError(ValueError):
    """The data is no graph that this version reads."""


class _Tensor(msgspec.Struct):
    id: _Whole
    shape: tuple[_Whole, ...]
    stride: tuple[_Whole, ...]
    dtype: str
    device: str
    storage: Annotated[int, msgspec.Meta(ge=-1)]
    offset: _Whole


class _Storage(msgspec.Struct):
    bytes: Annotated[int, msgspec.Meta(ge=0, le=_MOST_BYTES)]
    device: str
    kind: str = ""
    name: str = ""


class _Operator(msgspec.Struct):
    is_view: bool = False
    mutates: tuple[str, ...] = ()
    out_args: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    arg_names: tuple[str, ...] = ()
    composite: bool = False


class _Frame(msgspec.Struct):
    file: str
    line: int
    function: str
    user: bool


class _Mark(msgspec.Struct):
    kind: MarkKind
    call: _Whole
    frame: _Whole | None = None


class _Node(msgspec.Struct):
    id: int
    op: str
    args: list[Any]
    kwargs: dict[str, Any]
    out: Any
    inputs: list[_Tensor]
    outputs: list[_Tensor]
    writes: list[bool]
    reads: list[bool]
    frames: tuple[_Whole, ...] = ()
    module: str | None = None
    module_class: str = ""
    module_call: int = 0
    phase: Phase = "other"
    stream: Annotated[int, msgspec.Meta(ge=0, lt=2**16)] = 0
    autograd: bool = False
    python_us: _Time | None = None
    freed: tuple[_Whole, ...] = ()


class _File(msgspec.Struct):
    format: str
    version: int
    program: str
    mode: str
    torch: str
    gpu: str
    storages: list[_Storage]
    operators: dict[str, _Operator]
    frames: list[_Frame]
    nodes: list[_Node]
    steps: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 1
    python_loop_us: _Time | None = None
    tail_us: _Time | None = None
    float32_matmul: str = ""
    float32_convolution: str = ""
    notes: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    freed_before: tuple[_Whole, ...] = ()
    tensor_names: dict[str, str] = {}
    marks: list[_Mark] = []
    pricing: dict[str, Any] = {}


def graph_to_record(graph: OpGraph) -> dict[str, Any]:
    """Plain data, ready for JSON: everything recorded, and the edges, nothing priced."""
    info = graph.info
    frames: dict[Frame, int] = {}
    nodes = []
    # What calls share is made once: a row of a table each.
    templates: dict[int, dict[str, Any]] = {}
    sources: dict[int, dict[str, Any]] = {}
    layouts = [
        {"shape": layout.shape, "stride": layout.stride, "dtype": layout.dtype, "device": layout.device}
        for layout in graph.layouts.rows
    ]

    def tensors(numbers: Sequence[int]) -> list[dict[str, Any]]:
        return [
            {
                "id": number,
                **layouts[graph.tensor_layout(number)],
                "storage": graph.tensor_storage(number),
                "offset": graph.tensor_offset(number),
            }
            for number in numbers
        ]

    for call in range(len(graph)):
        module, python_us = graph.module_call(call), graph.python_us(call)
        flags = graph.operand_flags(call)
        row = graph.template_of(call)
        if row not in templates:
            templates[row] = _arguments(graph.templates[row])
        arguments = templates[row]
        row = graph.source_of(call)
        if row not in sources:
            sources[row] = _source(graph.sources[row], frames)
        nodes.append(
            {
                "id": call,
                "op": graph.facts(call).name,
                "module": module.path if module else None,
                "module_class": module.cls if module else "",
                "module_call": module.call if module else 0,
                **sources[row],
                "phase": graph.phase(call),
                "stream": graph.stream(call),
                "autograd": graph.autograd(call),
                "python_us": None if python_us is None else round(python_us, 2),
                **arguments,
                "inputs": tensors(graph.operands(call)),
                "outputs": tensors(graph.outputs(call)),
                "writes": [bool(flag & WRITES) for flag in flags],
                "reads": [bool(flag & READS) for flag in flags],
                "freed": list(graph.freed_after(call)),
            }
        )
    marks = [
        {
            "kind": mark.kind,
            "call": mark.call,
            "frame": None if mark.frame is None else frames.setdefault(mark.frame, len(frames)),
        }
        for mark in graph.marks
    ]
    return {
        "format": FORMAT,
        "version": VERSION,
        "program": info.program,
        "gpu": info.gpu,
        "mode": info.mode,
        "torch": info.torch,
        "steps": info.steps,
        "python_loop_us": info.python_loop_us,
        "tail_us": info.tail_us,
        "float32_matmul": info.float32_matmul,
        "float32_convolution": info.float32_convolution,
        "complete": info.complete,
        "notes": list(info.notes),
        "incomplete": list(info.incomplete),
        "nodes": nodes,
        "edges": [{"src": e.src, "dst": e.dst, "tensor": e.tensor, "kind": e.kind} for e in graph.edges],
        "storages": [
            {"bytes": s.nbytes, "device": s.device, "kind": s.kind, "name": s.name} for s in graph.storages
        ],
        "tensor_names": {str(number): name for number, name in graph.tensor_names.items()},
        "freed_before": list(graph.freed_after(-1)),
        "marks": marks,
        "operators": {
            facts.name: {
                "is_view": facts.is_view,
                "mutates": facts.mutates,
                "out_args": facts.out_args,
                "tags": facts.tags,
                "arg_names": facts.arg_names,
                "composite": facts.composite,
            }
            for facts in graph.ops
        },
        "frames": [{"file": f.file, "line": f.line, "function": f.function, "user": f.user} for f in frames],
    }


def graph_from_record(data: bytes) -> tuple[OpGraph, dict[str, Any]]:
    """The graph of a ``graph.json`` and the pricing options it was written with.

    Raises ``GraphFormatError`` on anything that is not such a file.
    """
    try:
        head = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        raise GraphFormatError(f"not a JSON object ({error})") from None
    if msgspec.json.decode(head.get("format", msgspec.Raw(b"null"))) != FORMAT:
        raise GraphFormatError(f'no optrace graph (its "format" is not "{FORMAT}")')
    version = msgspec.json.decode(head.get("version", msgspec.Raw(b"null")))
    if version != VERSION:
        raise GraphFormatError(f"written in format version {version}, and this optrace reads {VERSION}")
    try:
        file = msgspec.json.decode(data, type=_File)
        return _build(file), file.pricing
    except msgspec.ValidationError as error:
        raise GraphFormatError(str(error)) from None
    except (LookupError, TypeError, ValueError) as error:
        raise GraphFormatError(f"inconsistent: {error}") from None


def _build(file: _File) -> OpGraph:
    graph = OpGraph(
        TraceInfo(
            program=file.program,
            mode=file.mode,
            torch=file.torch,
            gpu=file.gpu,
            steps=file.steps,
            python_loop_us=file.python_loop_us,
            tail_us=file.tail_us,
            float32_matmul=file.float32_matmul,
            float32_convolution=file.float32_convolution,
            notes=file.notes,
            incomplete=file.incomplete,
        )
    )
    for storage in file.storages:
        graph.add_storage(Storage(storage.bytes, storage.device, storage.kind, storage.name))
    frames = [Frame(f.file, f.line, f.function, f.user) for f in file.frames]
    numbers: dict[int, int] = {}

    def tensor(item: _Tensor) -> int:
        if item.id not in numbers:
            if item.storage >= len(file.storages):
                raise ValueError(f"tensor {item.id} lies in storage {item.storage} of {len(file.storages)}")
            if len(item.shape) != len(item.stride):
                raise ValueError(
                    f"tensor {item.id} has {len(item.shape)} sizes and {len(item.stride)} strides"
                )
            if math.prod(item.shape) > _MOST_ELEMENTS:
                raise ValueError(
                    f"tensor {item.id} is of shape {list(item.shape)}, more elements than any device holds"
                )
            layout = graph.layouts.add(Layout(item.shape, item.stride, item.dtype, item.device))
            numbers[item.id] = graph.add_tensor(layout, item.storage, item.offset)
        return numbers[item.id]

    def free(storage: int, after: int) -> None:
        if storage >= len(file.storages):
            raise ValueError(f"storage {storage} of {len(file.storages)} is freed")
        graph.add_free(storage, after)

    for number in file.freed_before:
        free(number, -1)
    for position, node in enumerate(file.nodes):
        if node.id != position:
            raise ValueError(f"node {node.id} stands at place {position}")
        if not len(node.inputs) == len(node.writes) == len(node.reads):
            raise ValueError(f"node {node.id} has {len(node.inputs)} inputs, {len(node.writes)} writes marks")
        known = file.operators[node.op]
        facts = OpFacts(
            node.op,
            known.is_view,
            known.mutates,
            known.out_args,
            known.tags,
            known.arg_names,
            known.composite,
        )
        _check_holes(node)
        graph.add_call(
            graph.add_op_facts(facts),
            graph.add_template(
                tuple(_template(item) for item in node.args),
                tuple((name, _template(item)) for name, item in node.kwargs.items()),
                _template(node.out),
            ),
            [tensor(item) for item in node.inputs],
            [WRITES * w | READS * r for w, r in zip(node.writes, node.reads, strict=True)],
            [tensor(item) for item in node.outputs],
            source=graph.sources.add(Source(tuple(frames[number] for number in node.frames))),
            module=graph.module_calls.add(ModuleCall(node.module, node.module_class, node.module_call))
            if node.module is not None
            else -1,
            phase=node.phase,
            stream=node.stream,
            autograd=node.autograd,
            python_us=-1.0 if node.python_us is None else node.python_us,
        )
        for number in node.freed:
            free(number, node.id)
    graph.marks += [
        Mark(mark.kind, mark.call, None if mark.frame is None else frames[mark.frame]) for mark in file.marks
    ]
    graph.tensor_names.update(
        {numbers[int(number)]: name for number, name in file.tensor_names.items() if int(number) in numbers}
    )
    return graph


def _check_holes(node: _Node) -> None:
    """Each tensor of ``inputs`` and ``outputs`` stands once in the arguments and the result, in order."""
    for what, tree, count in (
        ("inputs", [*node.args, *node.kwargs.values()], len(node.inputs)),
        ("outputs", node.out, len(node.outputs)),
    ):
        if list(_hole_numbers(tree)) != list(range(count)):
            raise ValueError(f"node {node.id}: its arguments do not name its {what} in order")


def _hole_numbers(item: Any, depth: int = 0) -> Iterator[int]:
    if depth > _MOST_NESTED:
        raise ValueError(f"lists in lists, more than {_MOST_NESTED} deep")
    if isinstance(item, list):
        for part in item:
            yield from _hole_numbers(part, depth + 1)
    elif isinstance(item, dict) and "tensor" in item:
        yield item["tensor"]


def _source(source: Source, frames: dict[Frame, int]) -> dict[str, Any]:
    line = source.line
    return {
        "source": str(line) if line else None,
        "frames": [frames.setdefault(frame, len(frames)) for frame in source.frames],
    }


def _arguments(template: CallTemplate) -> dict[str, Any]:
    places = itertools.count()
    return {
        "args": [_plain(item, places) for item in template.args],
        "kwargs": {name: _plain(item, places) for name, item in template.kwargs},
        "out": _plain(template.out, itertools.count()),
    }


def _plain(value: object, places: Iterator[int]) -> Any:
    """JSON has no tensor, no infinity and no complex number: each is an object with one telling key."""
    if value is HOLE:
        return {"tensor": next(places)}
    if isinstance(value, tuple):
        return [_plain(item, places) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, complex):
        return {"complex": [repr(value.real), repr(value.imag)]}
    return value


def _template(item: Any) -> object:
    if isinstance(item, list):
        return tuple(_template(part) for part in item)
    if isinstance(item, dict):
        if "tensor" in item:
            return HOLE
        if "float" in item:
            return float(item["float"])
        real, imag = item["complex"]
        return complex(float(real), float(imag))
    return item
