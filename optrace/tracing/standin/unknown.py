# torch leaves these functions untyped:
# mypy: disable-error-code="no-untyped-call"
# ruff: noqa: ARG001  # signatures are those of torch
"""Values that a program asks of tensors: the known ones exactly, the unknown ones by the user's choice.

Ops that return a plain value, or a tensor whose shape depends on values, are answered here. Where the value is
known the op runs on it. Where it is not, `assume` decides: "error" stops with `UnknownValueError`, "zero" takes
zero, False and empty results, "worst" takes True and the largest result; each guess is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensor

from optrace.tracing.sources import SourceFinder
from optrace.tracing.standin.values import Values, tensors_in

aten = torch.ops.aten

Assume = Literal["error", "zero", "worst"]


_GUESSING = "--assume zero or worst (assume='zero', 'worst') goes on with a guess"


class UnknownValueError(RuntimeError):
    """The program asked for a value that only a real run knows."""


def user_line() -> str:
    """ " (model.py:12)": the user's line that runs now; nothing where no frame is the user's."""
    line = SourceFinder().find(sys._getframe(1)).source.line
    return f" ({line.file}:{line.line})" if line is not None else ""


def _no_fake(op: str) -> str:
    name = op.rsplit(".", 1)[0].replace(".", "::")
    return (
        f"{op}{user_line()} has no fake implementation: the shapes that it returns are known only by running it; "
        f'register one with @torch.library.register_fake("{name}")'
    )


class NoFakeError(RuntimeError):
    """An op has no fake implementation, so the shapes that it returns are not known without running it."""

    def __init__(self, op: str) -> None:
        super().__init__(_no_fake(op))


@dataclass(frozen=True, slots=True)
class Guess:
    """A value that the program asked of a tensor whose contents are not known."""

    op: str  # the overload that asked, e.g. "aten._local_scalar_dense.default"
    value: object  # what it was told: a number, or the shape of the tensor that it got
    said: str = ""  # in place of "op was told value"

    def __str__(self) -> str:
        return self.said or f"{self.op} was told {self.value}"


Guesser = Callable[[Sequence[Any], bool], Any]  # arguments, whether the worst is assumed -> answer


def _number(args: Sequence[Any], worst: bool) -> object:
    dtype = args[0].dtype
    if dtype == torch.bool:
        return worst
    if dtype.is_complex:
        return 0j
    return 0.0 if dtype.is_floating_point else 0


def _flag(args: Sequence[Any], worst: bool) -> object:
    return worst


def _nonzero(args: Sequence[Any], worst: bool) -> object:
    t = args[0]
    return torch.empty((t.numel() if worst else 0, t.dim()), dtype=torch.int64, device="meta")


def _masked_select(args: Sequence[Any], worst: bool) -> object:
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
    return torch.empty(shape.numel() if worst else 0, dtype=args[0].dtype, device="meta")


def _unique(args: Sequence[Any], worst: bool) -> object:
    t = args[0]
    count = t.numel() if worst else min(t.numel(), 1)  # a tensor with elements has at least one distinct one
    found = torch.empty(count, dtype=t.dtype, device="meta")
    inverse = torch.empty(t.shape, dtype=torch.int64, device="meta")
    return found, inverse, torch.empty(count, dtype=torch.int64, device="meta")


def _bincount(args: Sequence[Any], worst: bool) -> object:
    minimum = args[2] if len(args) > 2 else 0
    return torch.empty(max(minimum, 1), dtype=torch.int64, device="meta")


_ANSWERED: Mapping[Any, Guesser] = {
    aten._local_scalar_dense.default: _number,
    aten.item.default: _number,
    aten.is_nonzero.default: _flag,
    aten.equal.default: _flag,
    aten.allclose.default: _flag,
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten._unique2.default: _unique,
    aten.unique_consecutive.default: _unique,
    aten.bincount.default: _bincount,
}
# Answered when known; otherwise torch decides, which raises an error of its own.
_ANSWERED_IF_KNOWN = frozenset(
    {
        aten.unique_dim.default,
        aten.repeat_interleave.Tensor,
        aten._assert_async.default,
        aten._assert_async.msg,
        aten._pack_padded_sequence.default,
        aten.segment_reduce.default,
        aten.nonzero_static.default,
    }
)


def _selected(args: Sequence[Any], mask: torch.Tensor) -> object:
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
    return torch.empty(int(mask.expand(shape).sum()), dtype=args[0].dtype, device="meta")


def _packed(args: Sequence[Any], lengths: torch.Tensor) -> object:
    data, _, batch_first = args
    if batch_first:
        data = data.transpose(0, 1)
    steps = [int((lengths > step).sum()) for step in range(int(lengths.max()))]
    rows = torch.empty((sum(steps), *data.shape[2:]), dtype=data.dtype, device="meta")
    return rows, torch.tensor(steps)


# Ops whose result's shape follows from their second argument alone.
_ANSWERED_BY_PART: Mapping[Any, Callable[[Sequence[Any], torch.Tensor], object]] = {
    aten.masked_select.default: _selected,
    aten._pack_padded_sequence.default: _packed,
}
# Results that live on the host wherever the inputs are, by position.
HOST_RESULTS: Mapping[Any, int] = {aten._pack_padded_sequence.default: 1}
DEPENDS_ON_VALUES = frozenset(_ANSWERED) | _ANSWERED_IF_KNOWN


class Answers:
    """Answers ops that depend on values."""

    def __init__(self, values: Values, assume: Assume, guesses: list[Guess]) -> None:
        self.values = values
        self.assume = assume
        self.guesses = guesses

    def answer(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What `func` returns: plain values and real or meta tensors; NotImplemented if torch is to decide."""
        if (real := self.values.all_of(args, kwargs)) is not None:
            return func(*real[0], **real[1])
        if (part := _ANSWERED_BY_PART.get(func)) is not None and (
            known := self.values.get(args[1])
        ) is not None:
            return part(args, known)
        guess = _ANSWERED.get(func)
        if guess is None:
            return NotImplemented
        return self.guess(str(func), lambda worst: guess(args, worst), args)

    def guess(self, op: str, make: Callable[[bool], Any], about: Sequence[Any]) -> Any:
        """The guess that the user chose, kept in the list; raises UnknownValueError if the choice is to stop."""
        if self.assume == "error":
            if (ended_by := self.values.ended_by(about)) is not None:
                raise UnknownValueError(
                    f"{op}{user_line()} asks for the value of a tensor that follows from {ended_by}, which the CPU "
                    f"cannot compute; {_GUESSING}"
                )
            raise UnknownValueError(
                f"{op}{user_line()} asks for the value of a tensor that follows from data, which a trace without a "
                f"GPU does not have; --mode cpu (mode='cpu') computes it, {_GUESSING}"
            )
        value = make(self.assume == "worst")
        shown = [list(t.shape) for t in value] if isinstance(value, tuple) else value
        self.guesses.append(Guess(op, list(value.shape) if isinstance(value, torch.Tensor) else shown))
        return value

    @contextmanager
    def expecting(self, assume: Assume) -> Iterator[None]:
        """Guess in the given way for a while, whatever the user chose."""
        chosen, self.assume = self.assume, assume
        try:
            yield
        finally:
            self.assume = chosen

    def note(self, op: str, said: str) -> None:
        """Keep what was assumed whatever the user chose."""
        self.guesses.append(Guess(op, None, said))

    def no_fake(self, op: str) -> None:
        """Keep that the results of `op`, whose shapes nobody knows, were taken to be like its first tensor."""
        said = f"{_no_fake(op)}; its results were taken to be like its first tensor"
        self.guesses.append(Guess(op, None, said))

    def index(self, func: Any, args: Sequence[Any]) -> Sequence[Any] | None:
        """The arguments of an indexing op with boolean masks as index tensors; None if there is no mask."""
        indices = args[1]
        if not any(isinstance(i, FakeTensor) and i.dtype in (torch.bool, torch.uint8) for i in indices):
            return None
        plain: list[Any] = []
        for i in indices:
            if isinstance(i, FakeTensor) and i.dtype in (torch.bool, torch.uint8):
                known = self.values.get(i)
                found = (
                    known.nonzero()
                    if known is not None
                    else self.guess(str(func), lambda worst, mask=i: _nonzero((mask,), worst), (i,))  # type: ignore[misc]
                )
                plain.extend(
                    torch.empty(found.size(0), dtype=torch.int64, device="meta") for _ in range(i.dim())
                )
            else:
                plain.append(i)
        return [args[0], plain, *args[2:]]


def gpu_or_cpu(args: Sequence[Any]) -> torch.device:
    """The device that the result of an op on `args` lives on."""
    devices = [t.fake_device for t in tensors_in(args)]
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))
