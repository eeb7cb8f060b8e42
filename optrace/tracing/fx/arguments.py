"""Recorded values as the arguments that torch takes.

The record holds dtypes, layouts, memory formats and devices by name and every list as a tuple; an overload's
schema says which of them a value is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from optrace.graph.opgraph import HOLE, CallTemplate
from optrace.tracing.facts import overload_named
from optrace.tracing.fx.errors import FxError


def overload_of(name: str) -> torch._ops.OpOverload:
    """The overload that ``aten.add.Tensor`` names. Raises ``FxError`` where this torch has none of that name."""
    found = overload_named(name)
    if found is None:
        raise FxError(
            f"torch {torch.__version__} has no op {name}: import the package that defines it, or use the torch that "
            "the graph was recorded with"
        )
    return found


def arguments_of(
    op: torch._ops.OpOverload,
    template: CallTemplate,
    tensors: Iterator[Any],
    generator: Callable[[], Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a call; ``tensors`` are what stands for its tensors, in order, and
    ``generator()`` for its generator.

    Raises ``FxError`` for a value of which the record holds only the type.
    """
    schema = op._schema.arguments
    types = {argument.name: str(argument.real_type) for argument in schema}

    def value_of(value: Any, kind: str) -> Any:
        if value is HOLE:
            return next(tensors)
        if isinstance(value, tuple):
            return [value_of(item, kind) for item in value]
        if not isinstance(value, str) or "str" in kind:
            return value
        if value == "<Generator>":
            return generator()
        if value.startswith("<"):
            raise FxError(f"{op}: of an argument of type {value[1:-1]} the record holds only its type")
        if value.startswith("torch."):
            return getattr(torch, value.removeprefix("torch."))
        return torch.device(value)

    args = tuple(
        value_of(value, types[argument.name]) for argument, value in zip(schema, template.args, strict=False)
    )
    kwargs = {name: value_of(value, types[name]) for name, value in template.kwargs}
    return args, kwargs
