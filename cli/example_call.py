"""A small call of an op, made from its schema alone and priced: what ``optrace explain`` shows of its kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optrace.cost.profiles import Pricing
    from optrace.report import Report

#: Shapes for its tensors, tried in this order: most ops take a matrix, the rest a batch, images or a row of numbers.
_SHAPES = ((1024, 1024), (16, 256, 256), (8, 64, 32, 32), (1024,))
_IMAGES, _FILTERS = (8, 64, 32, 32), (64, 64, 3, 3)

#: Tensors of whole numbers, by the names that schemas have for them.
_INDICES = ("index", "indices", "target")

_PLAIN: dict[str, object] = {"int": 1, "number": 2.0, "float": 0.5}


@dataclass(frozen=True, slots=True)
class Example:
    """``text`` is the call with its shapes; ``report`` has this one call, or those that torch makes of it."""

    text: str
    report: Report


def example_of(overloads: Sequence[Any], priced_as: Pricing) -> Example | None:
    """The first of the overloads that runs on plain arguments, on a stand-in GPU; None where none does."""
    from optrace.api import answers_of
    from optrace.report import report
    from optrace.tracing import open_session
    from optrace.tracing.facts import facts_of

    with open_session(
        "fake", gpu=priced_as.gpu.key, answers=answers_of(priced_as.gpu), assume="zero"
    ) as session:
        for op in overloads:
            for args, kwargs in _candidates(op):
                session.forget()
                try:
                    with session.recording():
                        op(*args, **kwargs)
                    priced = report(session.graph, priced_as)
                except (
                    Exception
                ):  # an op, and the rule of one, raise what they like at arguments that are not for it
                    continue
                made = [node.op for node in session.graph]
                if made == [str(op)] or (made and facts_of(op).composite):
                    return Example(_text(op, args, kwargs), priced)
    return None


def _candidates(op: Any) -> Iterator[tuple[list[object], dict[str, object]]]:
    """Arguments for those that have no default; where that will not do, for a number that has one too (``clamp``)."""
    schema = op._schema
    to_the_host = any(str(returned.type) == "number" for returned in schema.returns)
    shapes = ((1,),) if to_the_host else (_IMAGES,) if re.search("conv|attention", schema.name) else _SHAPES
    for with_number, shape in product((False, True), shapes):
        for sizes, index_shape in product(([1], [1, 1], [shape[-1]]), (shape[:1], shape)):
            args: list[object] = []
            kwargs: dict[str, object] = {}
            for argument in schema.arguments:
                type = str(argument.type)
                if with_number and type == "Optional[number]":
                    value = _PLAIN["number"]
                elif argument.has_default_value():
                    value = argument.default_value
                else:
                    value = _value(argument.name, type, shape, sizes, index_shape)
                if argument.kwarg_only:
                    kwargs[argument.name] = value
                else:
                    args.append(value)
            yield _trimmed(schema, args), {k: v for k, v in kwargs.items() if v is not None}


def _trimmed(schema: Any, args: list[object]) -> list[object]:
    """Without the defaults at the end."""
    kept = list(args)
    for argument in reversed([one for one in schema.arguments if not one.kwarg_only]):
        if not argument.has_default_value() or kept[-1] != argument.default_value:
            break
        kept.pop()
    return kept


def _value(
    name: str, type: str, shape: Sequence[int], sizes: list[int], index_shape: Sequence[int]
) -> object:
    import torch

    if type == "Tensor":
        if name in _INDICES:
            return torch.zeros(index_shape, dtype=torch.int64, device="cuda")
        if name == "mask":
            return torch.zeros(shape, dtype=torch.bool, device="cuda")
        return torch.zeros(_FILTERS if name == "weight" and len(shape) == 4 else shape, device="cuda")
    if type == "List[Tensor]":
        return [torch.zeros(shape, device="cuda") for _ in range(4)]
    if type == "bool":
        return name == "training"
    return sizes if "List[int]" in type else _PLAIN.get(type)


def _text(op: Any, args: Sequence[object], kwargs: dict[str, object]) -> str:
    given = [*map(_shown, args), *(f"{name}={_shown(value)}" for name, value in kwargs.items())]
    return f"{str(op).removeprefix('aten.')}({', '.join(given)})"


def _shown(value: object) -> str:
    import torch

    from optrace import units

    if isinstance(value, torch.Tensor):
        dtype = units.dtype(str(value.dtype).removeprefix("torch."))
        return f"{dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
        return f"[{_shown(value[0])} x{len(value)}]"
    return str(value)
