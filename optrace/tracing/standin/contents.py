# torch leaves these functions untyped:
# mypy: disable-error-code="no-untyped-call"
"""Contents of all tensors: beside each fake tensor a real one on the CPU, whatever its size.

Every op runs twice, once for its shapes, as CUDA would have them, and once on the contents. Where CUDA's op has no
CPU kernel its equivalent computes (`equivalents`). An op that the CPU cannot compute ends the contents of what it
makes; who asks for them later is told which op it was.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef

from optrace.tracing.standin.equivalents import EQUIVALENTS, CannotComputeError, computed
from optrace.tracing.standin.values import Values, effect_of, storage_of, tensors_in

aten = torch.ops.aten

CPU = torch.device("cpu")
# Contents of dead tensors are dropped when this many bytes came since the last time, or as many as are alive.
SWEEP_BYTES = 1 << 26
# Ops that give their tensor another storage, or only mark it.
_NO_CONTENTS = frozenset({"set_", "record_stream"})


class _Unknown(LookupError):
    """An argument has no contents."""

    def __init__(self, ended_by: str | None) -> None:
        super().__init__(ended_by)
        self.ended_by = ended_by


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for v in value:
            yield from _flat(v)
    else:
        yield value


class Contents(Values):
    """The contents of every tensor, by storage."""

    complete = True
    limit = sys.maxsize

    def __init__(self) -> None:
        super().__init__()
        self._ended: dict[int, tuple[StorageWeakRef, str]] = {}
        self._bytes_since_sweep = 0
        self._sweep_at = SWEEP_BYTES

    def adopt(self, fake: FakeTensor, real: Tensor) -> None:
        """`fake` describes `real` and shares its memory: writes reach the caller's own tensor."""
        if real.device.type == "cpu" and real.layout == torch.strided:
            self._keep(fake, real.untyped_storage())

    def put(self, t: FakeTensor, value: Tensor) -> None:
        """Let `t` have a copy of `value`."""
        self.forget(t)
        self._fill(t, value)

    def ended_by(self, args: Sequence[Any]) -> str | None:
        """The op that ended the contents of one of the tensors."""
        for t in tensors_in(args):
            storage = storage_of(t)
            entry = self._ended.get(storage._cdata) if storage is not None else None
            if entry is not None and not entry[0].expired():
                return entry[1]
        return None

    def follow(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        """Compute on the contents what `func` did to the fake tensors."""
        effect = effect_of(func)
        made = list(_flat(out))
        written = [args[i] for i in effect.written if i < len(args)]
        written += [kwargs[name] for name in effect.written_by_name if name in kwargs]
        fresh = [isinstance(t, FakeTensor) and not self.knows(t) for t in made]
        name = func._schema.name.split("::")[-1]
        if name in _NO_CONTENTS or not (written or any(fresh)):
            return  # a view, or the answer to a question
        if torch.Tag.inplace_view in func.tags and name.startswith(("resize", "_resize")):
            self._grow(args[0])
            return
        unread = EQUIVALENTS[func].unread if func in EQUIVALENTS else frozenset()
        try:
            real_args, real_kwargs = self._real(args, kwargs, unread)
            results = list(_flat(computed(func, real_args, real_kwargs)))
        except _Unknown as error:
            self._end([*made, *_flat(written)], error.ended_by or str(func))
            return
        except CannotComputeError as error:
            self._end([*made, *_flat(written)], str(error))
            return
        taken = {
            v.untyped_storage()._cdata for v in _flat([*real_args, *real_kwargs.values()]) if _is_strided(v)
        }
        for fake, value, is_fresh in zip(made, results, fresh, strict=True):
            if is_fresh and not self._store(fake, value, taken):
                self._end([fake], str(func))

    def _real(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], unread: frozenset[int]
    ) -> tuple[list[Any], dict[str, Any]]:
        def real(value: Any) -> Any:
            if isinstance(value, FakeTensor):
                known = self.get(value)
                if known is None:
                    raise _Unknown(self.ended_by((value,)))
                return known
            if isinstance(value, Tensor):
                return value.detach()
            if isinstance(value, torch.device):
                return CPU
            return [real(v) for v in value] if isinstance(value, (list, tuple)) else value

        real_args = [None if i in unread else real(a) for i, a in enumerate(args)]
        return real_args, {k: False if k == "pin_memory" else real(v) for k, v in kwargs.items()}

    def _store(self, fake: FakeTensor, value: Any, taken: set[int]) -> bool:
        """Give `fake` the contents that were computed, without a copy where nobody else has them."""
        storage = storage_of(fake)
        if storage is None or value is None:
            return False
        if not isinstance(value, Tensor):
            self._fill(fake, torch.tensor(value, dtype=fake.dtype).expand(fake.shape))
            return True
        if value.shape != fake.shape or value.layout != torch.strided:
            return False
        own = value.untyped_storage()
        if (
            value.dtype == fake.dtype
            and value.stride() == fake.stride()
            and value.storage_offset() == fake.storage_offset()
            and own.nbytes() == storage.nbytes()
            and own._cdata not in taken
            and not (value.is_conj() or value.is_neg())
        ):
            taken.add(own._cdata)
            self._keep(fake, own)
        else:
            self._fill(fake, value)
        return True

    def _fill(self, fake: FakeTensor, value: Tensor) -> None:
        """Copy `value` to the place of `fake` in its storage, which other tensors may share."""
        if not self.knows(fake):
            nbytes = fake.untyped_storage().nbytes()
            self._keep(fake, torch.empty(nbytes, dtype=torch.uint8).untyped_storage())
        target = self.get(fake)
        assert target is not None  # its storage is known by now
        target.copy_(value)

    def _grow(self, fake: FakeTensor) -> None:
        """The storage of `fake` was resized: what was there stays."""
        if not self.knows(fake):
            return
        before = self._known[fake.untyped_storage()._cdata][1]
        if before.nbytes() < fake.untyped_storage().nbytes():
            grown = torch.empty(fake.untyped_storage().nbytes(), dtype=torch.uint8)
            grown[: before.nbytes()] = torch.empty(0, dtype=torch.uint8).set_(before)
            self._keep(fake, grown.untyped_storage())

    def _keep(self, fake: FakeTensor, contents: torch.UntypedStorage) -> None:
        storage = fake.untyped_storage()
        self._known[storage._cdata] = (StorageWeakRef(storage), contents)
        self._ended.pop(storage._cdata, None)
        self._bytes_since_sweep += contents.nbytes()
        if self._bytes_since_sweep > self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        self._known = {at: entry for at, entry in self._known.items() if not entry[0].expired()}
        self._ended = {at: entry for at, entry in self._ended.items() if not entry[0].expired()}
        self._bytes_since_sweep = 0
        self._sweep_at = max(SWEEP_BYTES, sum(entry[1].nbytes() for entry in self._known.values()))

    def _end(self, tensors: Sequence[Any], op: str) -> None:
        for t in tensors:
            if isinstance(t, FakeTensor) and (storage := storage_of(t)) is not None:
                self._known.pop(storage._cdata, None)
                self._ended[storage._cdata] = (StorageWeakRef(storage), op)


def _is_strided(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided
