"""Which overload a call was, by the number and kinds of its arguments, and what its plain arguments mean."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from optrace.graph import OpFacts
from optrace.graph.opgraph import HOLE
from optrace.tracing.facts import facts_of, is_composite, packet_named
from optrace.tracing.imports.seen import SeenTensor, SeenValue

#: torch's numbers of dtypes, layouts and memory formats (c10/core/ScalarType.h, Layout.h, MemoryFormat.h).
_SCALAR_TYPES = [
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex32",
    "complex64",
    "complex128",
    "bool",
    "qint8",
    "quint8",
    "qint32",
    "bfloat16",
    "quint4x2",
    "quint2x4",
    "bits1x8",
    "bits2x4",
    "bits4x2",
    "bits8",
    "bits16",
    "float8_e5m2",
    "float8_e4m3fn",
    "float8_e5m2fnuz",
    "float8_e4m3fnuz",
    "uint16",
    "uint32",
    "uint64",
]
_LAYOUTS = (
    "strided",
    "sparse_coo",
    "sparse_csr",
    "_mkldnn",
    "sparse_csc",
    "sparse_bsr",
    "sparse_bsc",
    "jagged",
)
_MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")

#: By the word that a schema has for the type.
_NAMED = {"ScalarType": _SCALAR_TYPES, "Layout": _LAYOUTS, "MemoryFormat": _MEMORY_FORMATS}


@cache
def overloads_of(packet: str) -> tuple[torch._ops.OpOverload, ...]:
    """All overloads of ``aten.add``; none where this torch has no such op."""
    found = packet_named(packet)
    if found is None:
        return ()
    names: list[str] = found.overloads()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return tuple(op for name in names if _is_dispatched(op := getattr(found, name)))


def _is_dispatched(op: torch._ops.OpOverload) -> bool:
    """TorchScript has overloads of its own that no eager program calls."""
    try:
        is_composite(op)
    except RuntimeError:
        return False
    return True


def find_overload(
    packet: str, overload: str | None, args: Sequence[SeenValue]
) -> torch._ops.OpOverload | None:
    """The overload of that name, else the first that takes these arguments; None where there is none."""
    candidates = overloads_of(packet)
    if overload is not None:
        return next((op for op in candidates if op._overloadname == (overload or "default")), None)
    fitting = [op for op in candidates if _takes(op, args)]
    return min(fitting, key=lambda op: bool(facts_of(op).out_args), default=None)


@cache
def is_made_of_others(packet: str) -> bool:
    """Every overload of the op that does not write into ``out=`` is a composite of other ops."""
    plain = [op for op in overloads_of(packet) if not facts_of(op).out_args]
    return bool(plain) and all(map(is_composite, plain))


def unknown_facts(packet: str) -> OpFacts:
    """Of an op that this torch does not have."""
    return OpFacts(f"{packet}.default")


def template(
    op: torch._ops.OpOverload | None, args: Sequence[SeenValue]
) -> tuple[tuple[object, ...], tuple[tuple[str, object], ...]]:
    """Positional and named arguments with a hole for each tensor, as the graph keeps them."""
    if op is None:
        return tuple(_template(value, "") for value in args), ()
    positional: list[object] = []
    named: list[tuple[str, object]] = []
    for argument, value in zip(op._schema.arguments, args, strict=False):
        plain = _template(value, str(argument.real_type))
        if argument.kwarg_only:
            if plain is not None:
                named.append((argument.name, plain))
        else:
            positional.append(plain)
    while positional and positional[-1] is None:
        positional.pop()
    return tuple(positional), tuple(named)


def plain(value: bool | int | float | str | None, type: str) -> bool | int | float | str | None:
    """A plain argument; dtypes, layouts and memory formats by name (``torch.bfloat16``) in place of their numbers."""
    for word, names in _NAMED.items():
        if word in type and isinstance(value, int) and not isinstance(value, bool):
            return f"torch.{names[value]}" if 0 <= value < len(names) else None
    return value


def _template(value: SeenValue, type: str) -> object:
    if isinstance(value, SeenTensor):
        return HOLE
    if isinstance(value, tuple):
        return tuple(_template(item, type) for item in value)
    return plain(value, type)


def _takes(op: torch._ops.OpOverload, args: Sequence[SeenValue]) -> bool:
    """The profiler writes all arguments of a schema, those with defaults too."""
    arguments = op._schema.arguments
    return len(arguments) == len(args) and all(
        _fits(str(argument.type), value) for argument, value in zip(arguments, args, strict=True)
    )


def _fits(type: str, value: SeenValue) -> bool:
    optional = type.startswith("Optional[")
    inner = type.removeprefix("Optional[").removesuffix("]") if optional else type
    if value is None:
        return optional or inner in ("Device", "Layout", "Generator", "str")
    if isinstance(value, SeenTensor):
        return inner == "Tensor"
    if isinstance(value, tuple):
        item = inner.removeprefix("List[").removesuffix("]")
        return inner.startswith("List[") and all(_fits(item, part) for part in value)
    if isinstance(value, str):
        return inner in ("str", "Device", "Dimname")
    if isinstance(value, bool):
        return inner in ("bool", "number")
    return inner in ("number", "float", "complex") or (inner == "int" and isinstance(value, int))
