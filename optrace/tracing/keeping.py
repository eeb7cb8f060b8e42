"""What a run started from: the values that the record leaves out, kept where they are asked for.

A trace keeps no tensor alive. To run its calls again one needs the bytes that they began with, so a
``KeepingTracer`` holds the storages that the run found (and did not make), as they were before its first write to
them, the generators' states, and which tensors were alive at its end.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any
from weakref import ref

import torch

from optrace.tracing.facts import facts_of
from optrace.tracing.identity import NO_STORAGE
from optrace.tracing.sources import is_own_code
from optrace.tracing.tracer import OpTracer

#: Arguments that an op writes though its schema does not say so: running statistics in training.
WRITES_UNSAID: Mapping[str, tuple[str, ...]] = {
    "aten.native_batch_norm.default": ("running_mean", "running_var"),
    "aten.cudnn_batch_norm.default": ("running_mean", "running_var"),
    "aten.miopen_batch_norm.default": ("running_mean", "running_var"),
}

#: Random state of a device ("cpu", "cuda:0", ...).
RandomState = dict[str, torch.Tensor]


@dataclass(slots=True)
class Kept:
    """Beside a graph, by its numbers. Storages: ``storages`` as the run found them (copied before its first
    write), ``made_inside`` those of them that came to be during the run, by no call; ``written``. Tensors:
    ``without_storage`` the sparse and nested ones that the run found, ``trained`` those found that autograd
    accumulates into, ``conjugated`` those whose conjugate or negative bit is set.

    ``generators`` are copies of those passed as an argument, as they were first used; ``generator_of`` a call's.
    After the run: ``alive`` maps an object's address to a watch and its number, ``gradients`` a tensor's number to
    that of its ``.grad``, ``classes`` a module's path to its class; ``saved`` are tensors that autograd holds, as far as
    it can be told: copies of results that it makes for itself, and results that carry no gradient of calls that do.
    """

    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    made_inside: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    without_storage: dict[int, torch.Tensor] = field(default_factory=dict)
    trained: set[int] = field(default_factory=set)
    conjugated: set[int] = field(default_factory=set)
    generators: list[torch.Generator] = field(default_factory=list)
    generator_of: dict[int, int] = field(default_factory=dict)
    random_state: RandomState = field(default_factory=dict)
    alive: dict[int, tuple[ref[torch.Tensor], int]] = field(default_factory=dict)
    gradients: dict[int, int] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)
    saved: set[int] = field(default_factory=set)

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor that was alive at the end of the run."""
        found = self.alive.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None


class KeepingTracer(OpTracer):
    """An ``OpTracer`` that also keeps what the run started from, in ``kept``."""

    def _begin(self) -> None:
        """As ``OpTracer``'s; what was kept goes with the graph."""
        self.kept = Kept()
        self._made: set[int] = set()
        self._made_without_storage: set[int] = set()
        self._found: dict[int, ref[torch.UntypedStorage]] | None = None
        self._generators: dict[int, tuple[torch.Generator, int]] = {}
        self._place = (0, 0)
        self._followed: set[int] = set()  # results of calls that autograd made a node for
        super()._begin()

    def call(self, run: Callable[..., Any], func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a call and record it; keep what it is the first to read or to write."""
        if not self.enabled:
            return run(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            self._keep(func, args, kwargs)
        result = super().call(run, func, args, kwargs)
        with torch._C.DisableTorchFunction():
            before, self._place = self._place, _place(sys._getframe())
            self._note_made(result, func is torch.ops.aten.detach.default and self._place == before)
        return result

    def _keep(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if self._found is None:
            self._found = _storages_alive()
            self.kept.random_state = _random_state()
        facts = facts_of(func)
        written = {*facts.mutates, *WRITES_UNSAID.get(facts.name, ())}
        for name, value in (*zip(facts.arg_names, args, strict=False), *kwargs.items()):
            for leaf in _leaves(value):
                if isinstance(leaf, torch.Tensor):
                    self._keep_tensor(leaf, name in written)
                elif isinstance(leaf, torch.Generator):
                    self._keep_generator(leaf)

    def _keep_tensor(self, tensor: torch.Tensor, written: bool) -> None:
        kept, number = self.kept, self._number(tensor)
        storage = self.graph.tensor_storage(number)
        if tensor.is_conj() or tensor.is_neg():
            kept.conjugated.add(number)
        if storage == NO_STORAGE:
            if number not in self._made_without_storage:
                kept.without_storage.setdefault(number, tensor)
            return
        if storage in self._made:
            return
        bytes_of = tensor.untyped_storage()
        if storage not in kept.storages:
            kept.storages[storage] = bytes_of
            known = (self._found or {}).get(bytes_of._cdata)
            if known is None or known() is not bytes_of:
                kept.made_inside.add(storage)
        if _is_trained(tensor):
            kept.trained.add(number)
        if written and storage not in kept.written:
            kept.written.add(storage)
            kept.storages[storage] = bytes_of.clone()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def _number(self, tensor: torch.Tensor) -> int:
        return self._encoder.number(self._identities.seen(tensor))

    def _keep_generator(self, generator: torch.Generator) -> None:
        known = self._generators.get(id(generator))
        if known is None:
            # The object is kept beside, so that its address stays its own.
            known = self._generators[id(generator)] = (generator, len(self.kept.generators))
            self.kept.generators.append(generator.clone_state())
        self.kept.generator_of[len(self.graph)] = known[1]

    def _note_made(self, result: Any, saved: bool) -> None:
        """``saved``: autograd made the result of the call before, at the same instruction of the program."""
        followed = self.graph.autograd(len(self.graph) - 1)
        for leaf in _leaves(result):
            if isinstance(leaf, torch.Tensor):
                number = self._number(leaf)
                storage = self.graph.tensor_storage(number)
                if storage == NO_STORAGE:
                    self._made_without_storage.add(number)
                elif storage not in self.kept.storages:
                    self._made.add(storage)
                if leaf.is_conj() or leaf.is_neg():
                    self.kept.conjugated.add(number)
                if saved:
                    self.kept.saved.add(number)
                if followed:
                    self._followed.add(number)

    def _name_storages(self) -> None:
        super()._name_storages()
        kept = self.kept
        kept.alive = {id(tensor): (ref(tensor), number) for number, tensor in self._identities.alive()}
        kept.gradients = {}
        for watch, number in list(kept.alive.values()):
            tensor = watch()
            if tensor is None:
                continue
            if number in self._followed and not tensor._is_view() and not tensor.requires_grad:
                kept.saved.add(number)
            if _is_trained(tensor) and tensor.grad is not None:
                gradient = kept.number_of(tensor.grad)
                if gradient is not None:
                    kept.gradients[number] = gradient
        kept.classes = dict(self._modules.classes())


def _is_trained(tensor: torch.Tensor) -> bool:
    """Whether autograd accumulates into ``tensor``. Not asked of a view: torch raises where its base was since written."""
    return not tensor._is_view() and tensor.is_leaf and tensor.requires_grad


def _place(frame: FrameType | None) -> tuple[int, int]:
    """The instruction that a call came from: a frame outside of optrace, by address, and where in it."""
    while frame is not None and is_own_code(frame.f_code.co_filename):
        frame = frame.f_back
    return (id(frame), frame.f_lasti) if frame is not None else (0, 0)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _storages_alive() -> dict[int, ref[torch.UntypedStorage]]:
    """The storages of all tensors that Python knows, by address."""
    found = {}
    for item in gc.get_objects():
        if issubclass(type(item), torch.Tensor):
            try:
                storage = item.untyped_storage()
            except (RuntimeError, NotImplementedError):
                continue  # a wrapper that has no storage to ask for
            found[storage._cdata] = ref(storage)
    return found


def _random_state() -> RandomState:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's
        state |= {f"cuda:{index}": found for index, found in enumerate(torch.cuda.get_rng_state_all())}
    return state
