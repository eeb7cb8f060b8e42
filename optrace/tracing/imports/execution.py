"""PyTorch execution traces: what ``ExecutionTraceObserver`` wrote (schema 1.x, Sridharan et al., "Chakra", 2023).

A node a call, numbered in the order of their starts, with the number of the node that it was made in; tensors by
number and storage. There are no times in it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optrace.graph import Phase
from optrace.graph.foreign import CPP_DTYPES
from optrace.tracing.imports.overloads import is_made_of_others, overloads_of
from optrace.tracing.imports.seen import SeenCall, SeenRun, SeenTensor, SeenValue, TraceFileError, checked
from optrace.units import counted

_OP = re.compile(r"(?!autograd::|torch::)([A-Za-z_]\w*)::([A-Za-z_]\w*)\Z")
_SCHEMA = re.compile(r"[\w:]+?::\w+(?:\.(\w+))?\(")
#: Numbers of the node that all begins in, which need not be in the file.
_ROOTS = (0, 1)

#: Kinds of nodes that are named where some are left out.
_MOST_NAMES = 5

_TENSOR = re.compile(r"Tensor\((.*)\)\Z")


@dataclass(frozen=True, slots=True)
class _Node:
    number: int
    name: str
    schema: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]


def read_execution(document: Mapping[str, Any]) -> SeenRun:
    """Raises ``TraceFileError`` where the trace holds no op."""
    inside: dict[int, list[_Node]] = defaultdict(list)
    known = {int(node["id"]) for node in document["nodes"]}
    orphans = 0
    for node in document["nodes"]:
        attributes = {item["name"]: item.get("value") for item in node.get("attrs", ())}
        parent = int(node.get("ctrl_deps", node.get("parent", 0)))
        orphans += parent not in known and parent not in _ROOTS
        inside[parent if parent in known and parent != int(node["id"]) else 0].append(
            _Node(
                int(node["id"]),
                str(node["name"]),
                str(attributes.get("op_schema", node.get("op_schema", ""))),
                node["inputs"],
                node["outputs"],
            )
        )
    calls = [call for _, call in sorted(_calls(inside), key=lambda pair: pair[0])]
    if not calls:
        raise TraceFileError("it holds no op")
    on_gpu = any(tensor.device.startswith("cuda") for call in calls for tensor in call.outputs or ())
    notes = [] if on_gpu else ["the trace holds no GPU: its calls ran on the CPU"]
    left_out = [*_without_parent(orphans), *_in_circles(inside)]
    return SeenRun("execution trace", calls, device="a GPU" if on_gpu else "", notes=notes, left_out=left_out)


def _without_parent(count: int) -> Iterator[str]:
    if count:
        one, many = "was made in a call", "were made in calls"
        yield (
            f"{counted(count, 'node')} of the trace {one if count == 1 else many} that it does not hold, and "
            f"{'stands by itself' if count == 1 else 'stand by themselves'}"
        )


def _in_circles(inside: Mapping[int, Sequence[_Node]]) -> Iterator[str]:
    """What no way from the root leads to."""
    reached: set[int] = set()
    waiting = [0]
    while waiting:
        number = waiting.pop()
        if number not in reached:
            reached.add(number)
            waiting += [node.number for node in inside.get(number, ())]
    lost = Counter(node.name for parent, nodes in inside.items() if parent not in reached for node in nodes)
    if lost:
        shown = ", ".join(f"{name} x{count}" for name, count in lost.most_common(_MOST_NAMES))
        yield (
            f"{counted(lost.total(), 'node')} of the trace {'is' if lost.total() == 1 else 'are'} left out, whose parents "
            f"lead in a circle: {shown}{', ...' if len(lost) > _MOST_NAMES else ''}"
        )


def _calls(inside: Mapping[int, Sequence[_Node]]) -> Iterator[tuple[int, SeenCall]]:
    """The outermost calls that are no composites of others."""
    phase: Phase = "forward"
    waiting: list[tuple[_Node, Phase]] = [(node, phase) for node in inside.get(0, ())]
    while waiting:
        node, phase = waiting.pop()
        match = _OP.match(node.name)
        children = inside.get(node.number, ())
        if match is not None and _is_call(f"{match[1]}.{match[2]}", node, children):
            schema = _SCHEMA.match(node.schema)
            yield (
                node.number,
                SeenCall(
                    op=f"{match[1]}.{match[2]}",
                    overload=(schema[1] or "") if schema else None,
                    args=tuple(_values(node.inputs)),
                    outputs=tuple(tensor for value in _values(node.outputs) for tensor in _tensors(value)),
                    phase=phase,
                ),
            )
            continue
        if node.name.startswith("autograd::engine::evaluate_function"):
            phase = "backward"
        elif node.name.startswith("Optimizer."):
            phase = "optimizer"
        waiting += [(child, phase) for child in children]


def _is_call(packet: str, node: _Node, children: Sequence[_Node]) -> bool:
    if not overloads_of(packet):
        return bool(node.schema) and not children
    return not is_made_of_others(packet)


def _values(side: Mapping[str, Any]) -> Iterator[SeenValue]:
    for value, shape, type, stride in zip(
        side["values"],
        side["shapes"],
        side["types"],
        side.get("strides") or [[] for _ in side["values"]],
        strict=True,
    ):
        yield _value(value, shape, str(type), stride)


def _value(value: Any, shape: Any, type: str, stride: Any) -> SeenValue:
    tensor = _TENSOR.match(type)
    if tensor is not None:
        return _tensor(value, shape, tensor[1], stride)
    if type.startswith("GenericList["):
        items = _split(type.removeprefix("GenericList[").removesuffix("]"))
        if not isinstance(value, list) or len(items) != len(value):
            return None
        shapes = shape if len(shape) == len(value) else [[]] * len(value)
        strides = stride if len(stride) == len(value) else [[]] * len(value)
        return tuple(_value(*parts) for parts in zip(value, shapes, items, strides, strict=True))
    if type == "None" or value == "<None>":
        return None
    return value if isinstance(value, bool | int | float | str) else None


def _split(types: str) -> list[str]:
    """``Int,GenericList[Int,Int],Tensor(float)`` at its outer commas."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(types):
        depth += (letter in "[(<") - (letter in "])>")
        if letter == "," and not depth:
            parts.append(types[start:place])
            start = place + 1
    return [*parts, types[start:]] if types else []


def _tensor(value: Any, shape: Sequence[int], dtype: str, stride: Sequence[int]) -> SeenTensor | None:
    """``[tensor, storage, offset, elements, bytes of one, device]``; an undefined tensor has no storage."""
    if not isinstance(value, list) or len(value) < 6 or not value[1]:
        return None
    steps = tuple(stride) if len(stride) == len(shape) else _row_major(shape)
    return checked(
        SeenTensor(
            tuple(shape), steps, CPP_DTYPES.get(dtype, dtype), str(value[5]), int(value[1]), int(value[2])
        )
    )


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    stride = [1] * len(shape)
    for place in range(len(shape) - 2, -1, -1):
        stride[place] = stride[place + 1] * max(1, shape[place + 1])
    return tuple(stride)


def _tensors(value: SeenValue) -> Iterator[SeenTensor]:
    if isinstance(value, SeenTensor):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _tensors(item)
