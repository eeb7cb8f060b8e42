"""Which tensor an argument is: known where the trace numbers tensors, guessed by layout where it does not.

The guess: an argument is the tensor of its shape, strides and dtype that was made last and that nothing has read yet;
else one from outside that this phase has not read; else the one made last. A weight is read once a phase, so each
layer's gets its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from optrace.graph import OpGraph, Phase, Storage
from optrace.graph.opgraph import Layout
from optrace.tracing.imports.seen import SeenTensor

#: How far back a guess looks among tensors of one layout.
_WINDOW = 16

_Signature = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(slots=True)
class _Held:
    """A tensor that arguments may be; ``read`` is the last phase that read it, ``made`` says that a call made it."""

    number: int
    dtype: str
    made: bool
    read: Phase | None = None


class Identities:
    """Numbers tensors and storages of a graph under construction."""

    def __init__(self, graph: OpGraph, device: str) -> None:
        self._graph = graph
        self._device = device
        self._numbered: dict[tuple[SeenTensor, int], int] = {}
        self._storages: dict[
            int, int
        ] = {}  # of an address now: what lay there before has a number of its own
        self._begun: dict[int, int] = {}  # by address, the call that made what lies there
        self._held: dict[_Signature, list[_Held]] = defaultdict(list)
        self._last_use: dict[int, int] = {}
        self._outside: set[int] = set()
        #: Arguments whose tensor was guessed.
        self.guesses = 0

    def inputs(
        self, tensors: Sequence[SeenTensor], written: Sequence[bool], phase: Phase, device: str, call: int
    ) -> list[int]:
        """The numbers of a call's tensors."""
        taken: set[int] = set()
        found = []
        for tensor, writes in zip(tensors, written, strict=True):
            if tensor.storage is not None:
                number = self._by_number(tensor, outside=True)
            else:
                # Beside another tensor, one that is read may be a number, which is on the CPU.
                anywhere = device != "cpu" and not writes and len(tensors) > 1
                number = self._by_layout(
                    tensor, taken, writes and phase == "optimizer", phase, device, anywhere
                )
            taken.add(number)
            found.append(number)
            self._use(number, call)
        return found

    def output(
        self, tensor: SeenTensor, call: int, *, of: int | None = None, device: str = "", fresh: bool = False
    ) -> int:
        """The number of a tensor that a call returns; ``of``: it shows the bytes of that one; ``fresh``: its bytes are
        no argument's, so what lay at its address before was freed."""
        if tensor.storage is not None:
            if fresh and self._begun.get(tensor.storage) != call:
                self._storages.pop(tensor.storage, None)
                self._begun[tensor.storage] = call
            number = self._by_number(tensor, outside=False)
        else:
            storage = None if of is None else self._graph.tensor_storage(of)
            number = self._add(tensor, storage, device or self._device)
            self._held[tensor.shape, tensor.stride].append(_Held(number, tensor.dtype, made=True))
        self._use(number, call)
        return number

    def finish(self) -> None:
        """What a call made is gone after its last use: a trace does not say when."""
        ended = sorted((call, storage) for storage, call in self._last_use.items())
        for call, storage in ended:
            if storage not in self._outside:
                self._graph.add_free(storage, call)

    def _use(self, number: int, call: int) -> None:
        storage = self._graph.tensor_storage(number)
        if storage >= 0:
            self._last_use[storage] = call

    def _by_number(self, tensor: SeenTensor, *, outside: bool) -> int:
        assert tensor.storage is not None
        storage = self._storages.get(tensor.storage)
        number = None if storage is None else self._numbered.get((tensor, storage))
        if number is None:
            number = self._add(tensor, storage, tensor.device)
            if storage is None:
                storage = self._storages[tensor.storage] = self._graph.tensor_storage(number)
                if outside:
                    self._outside.add(storage)
            self._numbered[tensor, storage] = number
        return number

    def _by_layout(
        self,
        tensor: SeenTensor,
        taken: set[int],
        prefer_outside: bool,
        phase: Phase,
        device: str,
        anywhere: bool,
    ) -> int:
        self.guesses += 1
        held = self._held[tensor.shape, tensor.stride]
        recent = [
            one
            for one in held[-_WINDOW:][::-1]
            if one.number not in taken
            and (not tensor.dtype or one.dtype == tensor.dtype)
            and (anywhere or self._graph.tensor(one.number).device == device)
        ]
        if not tensor.dtype:  # lists are written without: most often of parameters, kept in float32
            recent = [one for one in recent if one.dtype == "float32"] or recent
        wishes = [
            [one for one in recent if one.made and one.read is None],
            [one for one in recent if not one.made and one.read != phase],
            [one for one in recent if one.made],
        ]
        if prefer_outside:
            wishes.insert(0, wishes.pop(1)[::-1])
        chosen = next((wish[0] for wish in wishes if wish), None)
        if chosen is None:
            known = tensor if tensor.dtype else SeenTensor(tensor.shape, tensor.stride, "float32")
            number = self._add(known, None, "cpu" if anywhere and _is_number(known) else device)
            self._outside.add(self._graph.tensor_storage(number))
            chosen = _Held(number, known.dtype, made=False)
            held.append(chosen)
        chosen.read = phase
        return chosen.number

    def _add(self, tensor: SeenTensor, storage: int | None, device: str) -> int:
        graph = self._graph
        layout = graph.layouts.add(Layout(tensor.shape, tensor.stride, tensor.dtype, device))
        span = (
            0
            if 0 in tensor.shape
            else 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride, strict=True))
        )
        if storage is None:
            storage = graph.add_storage(Storage(0, device))
        number = graph.add_tensor(layout, storage, tensor.offset)
        end = (tensor.offset + span) * graph.tensor(number).itemsize
        if end > graph.storages[storage].nbytes:
            graph.set_storage(storage, nbytes=end)
        return number


def _is_number(tensor: SeenTensor) -> bool:
    """A Python number in a tensor's place: torch wraps it on the CPU, in the widest type."""
    return not tensor.shape and tensor.dtype in ("float64", "int64", "complex128", "bool")
