# torch leaves these functions untyped:
# mypy: disable-error-code="no-untyped-call"
"""Values of small tensors that follow from constants.

A fake tensor has no contents, but programs ask for some: a schedule made by `linspace`, lengths, a mask of ones, a
step counter. Such tensors get a real CPU tensor beside them, and every op whose inputs are all known is also run
on those. Values are kept by storage, so a view shares them and a write through one alias is seen through all; a
write of something unknown forgets the whole storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef

from optrace.tracing.standin.equivalents import CannotComputeError, computed

aten = torch.ops.aten

# Tensors with more elements are not followed: values of large tensors are data, and computing them would cost time.
MAX_ELEMENTS = 1 << 16

# Ops that make tensors of known contents from plain arguments.
_FACTORIES = frozenset(
    {
        aten.arange.default,
        aten.arange.start,
        aten.arange.start_step,
        aten.eye.default,
        aten.eye.m,
        aten.full.default,
        aten.linspace.default,
        aten.logspace.default,
        aten.ones.default,
        aten.scalar_tensor.default,
        aten.tril_indices.default,
        aten.triu_indices.default,
        aten.zeros.default,
    }
)
# Ops that take only shape and dtype from their tensor, and the value they fill it with (None: an argument).
_LIKE: Mapping[Any, float | None] = {
    aten.zeros_like.default: 0,
    aten.ones_like.default: 1,
    aten.new_zeros.default: 0,
    aten.new_ones.default: 1,
    aten.full_like.default: None,
    aten.new_full.default: None,
}
# Writes that need not know what was there before.
_OVERWRITES = frozenset({aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default, aten.copy_.default})
# Random numbers made on the CPU are made there in a real run too: a program may steer by them. Floats are followed
# up to this many elements (coin flips), integers (seeds, permutations, indices) like any other value.
MAX_RANDOM_FLOATS = 16
_RANDOM = frozenset(
    {
        aten.rand.default,
        aten.randn.default,
        aten.randint.default,
        aten.randint.low,
        aten.randperm.default,
        aten.rand.generator,
        aten.randn.generator,
        aten.randint.generator,
        aten.randint.low_generator,
        aten.randperm.generator,
    }
)
_RANDOM_WRITES = frozenset(
    {
        aten.random_.default,
        aten.random_.to,
        getattr(aten.random_, "from"),
        aten.uniform_.default,
        aten.normal_.default,
        aten.bernoulli_.float,
    }
)
# Ops whose results are not a function of their inputs' values.
_MEANINGLESS = (
    "empty",
    "new_empty",
    "resize",
    "_resize",
    "set_",
    "record_stream",
    "_pin_memory",
    "pin_memory",
    "is_pinned",
)


@dataclass(frozen=True, slots=True)
class Effect:
    """What an op does to values: which arguments it writes, and whether its results follow from its inputs."""

    written: tuple[int, ...]
    written_by_name: tuple[str, ...]
    follows: bool


@cache
def effect_of(func: Any) -> Effect:
    """The effect of an op, from its schema."""
    written, by_name = [], []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            if argument.kwarg_only:
                by_name.append(argument.name)
            else:
                written.append(i)
    name = func._schema.name.split("::")[-1]
    follows = (
        func.namespace in ("aten", "prims")
        and torch.Tag.nondeterministic_seeded not in func.tags
        and torch.Tag.inplace_view not in func.tags
        and not name.startswith(_MEANINGLESS)
    )
    return Effect(tuple(written), tuple(by_name), follows)


def tensors_in(values: Sequence[Any]) -> Iterator[FakeTensor]:
    """The fake tensors among arguments, lists of tensors included."""
    for value in values:
        if isinstance(value, FakeTensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (v for v in value if isinstance(v, FakeTensor))


def storage_of(t: FakeTensor) -> torch.UntypedStorage | None:
    """The storage of `t`, by which its values are kept."""
    return t.untyped_storage() if t.layout is torch.strided else None  # sparse tensors have none


def _fills_storage(t: FakeTensor) -> bool:
    storage = storage_of(t)
    return storage is not None and t.numel() * t.element_size() == storage.nbytes()


def _followed_if_random(t: FakeTensor) -> bool:
    limit = MAX_RANDOM_FLOATS if t.dtype.is_floating_point else MAX_ELEMENTS
    return t.fake_device.type == "cpu" and t.numel() <= limit


class Values:
    """The values that are known, by storage of the fake tensor."""

    complete = False  # whether every op is followed, so that no value has to be guessed
    limit = MAX_ELEMENTS

    def __init__(self) -> None:
        # A weak reference keeps the address of a dead storage from being used again.
        self._known: dict[int, tuple[StorageWeakRef, torch.UntypedStorage]] = {}
        self._purge_at = 1024

    def get(self, t: FakeTensor) -> Tensor | None:
        """The value of `t`, sharing memory with the values of its aliases; None if it is not known."""
        if not self._known or t.numel() > self.limit:
            return None
        storage = storage_of(t)
        entry = self._known.get(storage._cdata) if storage is not None else None
        if entry is None or entry[0].expired():
            return None
        real = torch.empty(0, dtype=t.dtype).set_(entry[1], t.storage_offset(), t.shape, t.stride())
        if t.is_conj():
            real = real.conj()
        return torch._neg_view(real) if t.is_neg() else real

    def knows(self, t: FakeTensor) -> bool:
        """Whether the storage of `t` has values."""
        storage = storage_of(t)
        entry = self._known.get(storage._cdata) if storage is not None else None
        return entry is not None and not entry[0].expired()

    def put(self, t: FakeTensor, value: Tensor) -> None:
        """Let `t`, which must fill its storage, have a copy of `value`."""
        storage = t.untyped_storage()
        real = torch.empty(storage.nbytes() // max(t.element_size(), 1), dtype=t.dtype)
        real.as_strided(t.shape, t.stride(), t.storage_offset()).copy_(value)
        self._known[storage._cdata] = (StorageWeakRef(storage), real.untyped_storage())
        if len(self._known) > self._purge_at:
            self._known = {at: entry for at, entry in self._known.items() if not entry[0].expired()}
            self._purge_at = max(1024, 2 * len(self._known))

    def adopt(self, fake: FakeTensor, real: Tensor) -> None:
        """`fake` describes `real`, which came from outside: its values are kept if they are few."""
        few = real.device.type == "cpu" and real.layout == torch.strided and real.numel() <= self.limit
        if few and _fills_storage(fake):
            self.put(fake, real.detach())

    def move(self, tensors: Sequence[FakeTensor], values: Sequence[Tensor | None]) -> None:
        """`tensors`, which had `values`, became parts of one new storage."""
        if any(value is None for value in values):
            return
        storage = tensors[0].untyped_storage()
        buffer = torch.empty(storage.nbytes(), dtype=torch.uint8).untyped_storage()
        self._known[storage._cdata] = (StorageWeakRef(storage), buffer)
        for t, value in zip(tensors, values, strict=True):
            place = self.get(t)
            assert place is not None  # kept above
            assert value is not None  # asked above
            place.copy_(value)

    def ended_by(self, args: Sequence[Any]) -> str | None:  # noqa: ARG002 - for those who follow all
        """The op that ended the values of one of the tensors, where values are followed to their end."""
        return None

    def forget(self, t: FakeTensor) -> None:
        """The contents of the storage of `t` are no longer known."""
        if self._known and (storage := storage_of(t)) is not None:
            self._known.pop(storage._cdata, None)

    def all_of(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]] | None:
        """The arguments with values in place of fake tensors, on the CPU; None if one is not known."""
        found = 0

        def real(value: Any) -> Any:
            nonlocal found
            if isinstance(value, FakeTensor):
                known = self.get(value)
                if known is None:
                    raise LookupError
                found += 1
                return known
            if isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in value):
                return [real(v) for v in value]
            return value

        try:
            real_args = [real(a) for a in args]
            real_kwargs = {k: torch.device("cpu") if k == "device" else real(v) for k, v in kwargs.items()}
        except LookupError:
            return None
        return (real_args, real_kwargs) if found else None

    def follow(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        """Bring the values up to date after `func` has returned the fake tensors `out`."""
        effect = effect_of(func)
        if effect.written or effect.written_by_name:
            self._written(func, effect, args, kwargs)
        elif func in _RANDOM:
            if _followed_if_random(out):
                self.put(out, func(*args, **kwargs))
        elif not effect.follows or not isinstance(out, (FakeTensor, tuple, list)):
            return
        elif func in _FACTORIES and isinstance(out, FakeTensor):
            if out.numel() <= MAX_ELEMENTS:
                self.put(out, func(*args, **{**kwargs, "device": torch.device("cpu"), "pin_memory": False}))
        elif func in _LIKE and isinstance(out, FakeTensor):
            if out.numel() <= MAX_ELEMENTS:
                value = _LIKE[func]
                self.put(out, torch.tensor(args[-1] if value is None else value, dtype=out.dtype))
        elif self._known and (real := self._inputs(args, kwargs, out)) is not None:
            try:
                results = computed(func, *real)
            except CannotComputeError:
                return  # what is not known stays so
            self._outputs(out, results)

    def _inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Any:
        first = next(tensors_in(args), None)
        if first is None or not self.knows(first):  # the common case, quickly
            return None
        made = list(tensors_in(out if isinstance(out, (tuple, list)) else (out,)))
        views_of_the_known = all(self.knows(t) for t in made)
        if views_of_the_known or any(t.numel() > MAX_ELEMENTS for t in made):
            return None
        return self.all_of(args, kwargs)

    def _outputs(self, out: Any, real: Any) -> None:
        if isinstance(out, FakeTensor):
            # Some shapes are the device's: the workspace of the CPU's LSTM is no size that torch describes.
            same = isinstance(real, Tensor) and real.shape == out.shape
            if same and storage_of(out) is not None and not self.knows(out):
                self.put(out, real)
        elif isinstance(out, (tuple, list)):
            for fake, value in zip(out, real, strict=True):
                self._outputs(fake, value)

    def _written(self, func: Any, effect: Effect, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        targets = list(tensors_in([args[i] for i in effect.written if i < len(args)]))
        targets += tensors_in([kwargs[name] for name in effect.written_by_name if name in kwargs])
        if func in _RANDOM_WRITES and _followed_if_random(targets[0]) and _fills_storage(targets[0]):
            fresh = torch.empty(targets[0].shape, dtype=targets[0].dtype)
            self.put(targets[0], func(fresh, *args[1:], **kwargs))
            return
        if effect.follows and all(t.numel() <= MAX_ELEMENTS for t in targets):
            if func in _OVERWRITES:
                target = targets[0]
                source = next(tensors_in(args[1:]), None)
                given = args[1] if len(args) > 1 else 0
                if source is not None:
                    value = self.get(source)
                else:
                    value = given.detach() if isinstance(given, Tensor) else torch.tensor(given)
                if value is not None and _fills_storage(target):
                    self.put(target, value.to(target.dtype))
                    return
            if self._known and (real := self.all_of(args, kwargs)) is not None:
                try:
                    computed(func, *real)
                except CannotComputeError:
                    pass
                else:
                    return
        for target in targets:
            self.forget(target)
