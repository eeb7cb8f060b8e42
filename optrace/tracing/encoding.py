"""From what the tracer kept of each call to the columns of a graph, many calls at once.

A call comes when the processor's caches hold torch's and the program's code and data, not ours, and each table that is
looked into then costs more than what is done with it. So a call only leaves a tuple (``Call``), and the tables of
templates, layouts, lines and modules are met here, for a few hundred calls one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from threading import RLock, get_ident
from typing import Any, NamedTuple, TypeAlias

import torch

from optrace.graph import OpGraph, Storage
from optrace.graph.opgraph import HOLE, PHASE_NUMBERS, READS, WRITES, Layout
from optrace.graph.rows import Rows
from optrace.tracing.facts import facts_of
from optrace.tracing.identity import NO_STORAGE, Identities, SeenStorage, SeenTensor
from optrace.tracing.modules import Activation
from optrace.tracing.sources import Place, SourceFinder, Walk

_FORWARD, _BACKWARD, _OPTIMIZER = (PHASE_NUMBERS[phase] for phase in ("forward", "backward", "optimizer"))

#: Places in ``Rows.calls``.
_SOURCE, _MODULE = 2, 3

NAMED = (torch.dtype, torch.layout, torch.memory_format)


class Op(NamedTuple):
    """An overload. It is kept, so that its address stays its own."""

    func: torch._ops.OpOverload
    number: int
    flags_by_position: tuple[int, ...]
    flags_by_name: dict[str, int]


#: What is kept of a call, by position. Numbers, one a line, are: how many optimizers' steps are being taken; the stream;
#: the thread; the sequence number of the node that autograd makes next; the backward pass that runs, or -1; the sequence
#: number of the node that runs in it, or -1; and in a pass, whether nodes are made.
Call: TypeAlias = tuple[
    torch._ops.OpOverload,
    list[Any],  # keys of the arguments by position
    tuple[tuple[str, Any], ...],  # by name
    Any,  # key of the result
    list[SeenTensor],  # tensors of the arguments, in order
    list[SeenTensor],  # of the result
    Walk,
    Activation | None,  # the innermost module being called
    int,
    int,
    int,
    int,
    int,
    int,
    bool,
]

#: A call, or a storage that was freed since the call before.
Event: TypeAlias = Call | SeenStorage


class Encoder:
    """Appends the calls and frees in ``events`` to ``graph`` when it is told to, and takes them off the list."""

    def __init__(
        self, graph: OpGraph, events: list[Event], identities: Identities, sources: SourceFinder
    ) -> None:
        self._graph = graph
        self._events = events
        self._identities = identities
        self._sources = sources
        #: What is known by now, of overloads by address, of templates by the keys of a call, of places by walk.
        self.ops: dict[int, Op] = {}
        self.templates: dict[tuple[Any, ...], tuple[int, bytes]] = {}
        self.places = sources.places
        self._layouts: dict[tuple[Any, ...], int] = {}
        self._contents: dict[tuple[int, str, bool], Storage] = {}
        self._forward_calls = _ForwardCalls()
        self._alone = RLock()
        self._batches = 0

    @property
    def calls(self) -> int:
        """How many calls were recorded, those that wait to be appended too."""
        return len(self._graph) + sum(type(event) is tuple for event in self._events)

    def number(self, seen: SeenTensor) -> int:
        """The number of a tensor, given now if it has none."""
        if seen.number >= self._graph.tensors:
            storage = NO_STORAGE if seen.storage is None else self.storage(seen.storage)
            seen.number = self._graph.add_tensor(self.layout(seen), storage, int(seen.offset))
        return seen.number

    def storage(self, seen: SeenStorage) -> int:
        """The number of a storage, given now if it has none."""
        if seen.number >= len(self._graph.storages):
            seen.number = self._graph.add_storage(self.content(seen))
        return seen.number

    def encode(self) -> None:
        """Append all events.

        Interrupted, it leaves the graph and the events as they were. The numbers that it gave to tensors and storages
        are then none of the graph's, by which the next time knows that they are to be given again.
        """
        with self._alone:
            batches, count = self._batches, len(self._events)
            if not count:
                return
            batch = _Batch(self, self._graph, self._forward_calls.copy())
            # Not a slice: a collection of garbage while it is made may run whoever looks at the graph, and empty the list.
            batch.add(islice(self._events, count))
            if self._batches != batches:
                return  # a signal's handler looked at the graph meanwhile, for which all was appended
            state = {"_batches": batches + 1, "_forward_calls": batch.forward_calls}
            self._graph.append_rows(
                batch.rows, (self._events.__delitem__, slice(0, count)), (self.__dict__.update, state)
            )
            for storage in batch.freed:
                self._identities.forget_storage(storage)
            self._identities.forget_gone()
        self._note_grown()

    def _note_grown(self) -> None:
        grown = self._identities.grown
        while grown:
            seen = grown[-1]
            if seen.number < len(self._graph.storages):
                self._graph.set_storage(seen.number, nbytes=seen.nbytes)
            grown.pop()

    # -- what many calls have in common ------------------------------------------------------------

    def op(self, func: torch._ops.OpOverload) -> Op:
        """An overload, to be entered."""
        facts = facts_of(func)
        by_name = {
            name: WRITES if name in facts.out_args else READS | WRITES if name in facts.mutates else READS
            for name in facts.arg_names
        }
        by_position = tuple(by_name[name] for name in facts.arg_names)
        number = self._graph.add_op_facts(facts)
        op = self.ops[id(func)] = Op(func, number, by_position, by_name)
        return op

    def template(self, key: tuple[Any, ...], op: Op) -> tuple[int, bytes]:
        """The number of the template that the keys of a call (``op``'s number; arguments by position, by name; result)
        stand for, and the flags of its operands; to be entered."""
        _, given, named, made = key
        number = self._graph.add_template(self._value(given), self._value(named), self._value(made))
        known = self.templates[key] = (number, _flags(op, given, named))
        return known

    def _value(self, key: Any) -> Any:
        """The plain value, or the template of values, that a key stands for."""
        if isinstance(key, tuple):
            if len(key) == 2 and isinstance(key[0], type):
                kind, value = key
                return kind(value)
            return tuple([self._value(item) for item in key])
        if isinstance(key, torch.device):
            return self._identities.device_name(key)
        if isinstance(key, NAMED):
            return str(key)
        return key

    def layout(self, seen: SeenTensor) -> int:
        """The number of a tensor's layout."""
        key = (seen.shape, seen.stride, seen.dtype, seen.device)
        number = self._layouts.get(key)
        if number is None:
            number = self._layouts[key] = self._graph.layouts.add(_layout(*key))
        return number

    def content(self, seen: SeenStorage) -> Storage:
        """What the graph keeps of a storage: one object for all that are alike."""
        key = (seen.nbytes, seen.device, seen.pinned)
        content = self._contents.get(key)
        if content is None:
            content = self._contents[key] = Storage(seen.nbytes, seen.device, "pinned" if seen.pinned else "")
        return content

    def source_row(self, place: Place) -> int:
        """The row of a line in the graph's table."""
        place.row = self._graph.sources.add(place.source)
        return place.row

    def module_row(self, activation: Activation) -> int:
        """The row of a module's call in the graph's table."""
        activation.row = self._graph.module_calls.enter(activation.path, activation.cls, activation.number)
        return activation.row

    def place(self, walk: Walk) -> Place:
        """What is known of the frames that a call came from."""
        return self._sources.place(walk)


class _Batch:
    """The rows of some events, beside a graph that has those before."""

    def __init__(self, encoder: Encoder, graph: OpGraph, forward_calls: _ForwardCalls) -> None:
        self.rows = Rows()
        self.freed: list[SeenStorage] = []
        self.forward_calls = forward_calls
        self._encoder = encoder
        self._graph = graph
        self._calls, self._tensors, self._storages = len(graph), graph.tensors, len(graph.storages)
        # What got its number here: a number that is above the graph's and not of these was given in vain.
        self._new_tensors: list[SeenTensor] = []
        self._new_storages: list[SeenStorage] = []

    def add(self, events: Iterable[Event]) -> None:
        """Append the rows of ``events``."""
        rows, encoder, forward_calls, number = self.rows, self._encoder, self.forward_calls, self._number
        ops, templates, places = encoder.ops, encoder.templates, encoder.places
        calls, operands, flags, outputs = rows.calls, rows.operands, rows.operand_flags, rows.outputs
        numbered = self._tensors
        call = self._calls
        freed: list[SeenStorage] = []
        for event in events:
            if type(event) is SeenStorage:
                freed.append(event)
                continue
            (
                func,
                given,
                named,
                made,
                seen_operands,
                seen_outputs,
                walk,
                activation,
                steps,
                stream,
                thread,
                following,
                task,
                node,
                makes_nodes,
            ) = event  # type: ignore[misc]  # mypy does not tell them apart by ``type``
            if freed:
                self._add_frees(freed, call, seen_operands)
                freed = []
            op = ops.get(id(func)) or encoder.op(func)
            key = (op.number, tuple(given), named, made)
            template, operand_flags = templates.get(key) or encoder.template(key, op)
            place = places.get(walk) or encoder.place(walk)
            module = -1 if activation is None else activation.row
            if module < 0 and activation is not None:
                module = encoder.module_row(activation)
            source = -1
            if task == -1:
                phase = _OPTIMIZER if steps or place.in_optimizer else _FORWARD
            else:
                phase = _OPTIMIZER if steps or place.in_optimizer else _BACKWARD
                forward_call = forward_calls.call_of(node, task)
                if forward_call is not None:
                    if module < 0:
                        module = self._row(forward_call)[_MODULE]
                    if activation is None or not place.has_line:
                        source = self._row(forward_call)[_SOURCE]
            if source < 0 and (source := place.row) < 0:
                source = encoder.source_row(place)
            autograd = forward_calls.add(call, thread, following, task, makes_nodes)
            operands += [n if (n := seen.number) < numbered else number(seen) for seen in seen_operands]
            outputs += [n if (n := seen.number) < numbered else number(seen) for seen in seen_outputs]
            flags += operand_flags
            calls.append(
                (op.number, template, source, module, phase, stream, autograd, len(operands), len(outputs))
            )
            call += 1
        self._add_frees(freed, call, ())

    def _add_frees(self, freed: Sequence[SeenStorage], call: int, operands: Sequence[SeenTensor]) -> None:
        """Storages that were gone when ``call`` had run: those of its operands not before it, as where it packs weights
        into one buffer."""
        in_use = [seen.storage for seen in operands]
        for seen in freed:
            self.rows.freed_storage.append(self._storage(seen))
            self.rows.freed_after.append(call if seen in in_use else call - 1)
            self.freed.append(seen)

    def _number(self, seen: SeenTensor) -> int:
        tensors = self._new_tensors
        new = seen.number - self._tensors
        if new < 0 or (new < len(tensors) and tensors[new] is seen):
            return seen.number
        rows, storage = self.rows, seen.storage
        rows.tensor_layout.append(self._encoder.layout(seen))
        rows.tensor_storage.append(NO_STORAGE if storage is None else self._storage(storage))
        rows.tensor_offset.append(int(seen.offset))
        seen.number = number = self._tensors + len(tensors)
        tensors.append(seen)
        return number

    def _storage(self, seen: SeenStorage) -> int:
        storages = self._new_storages
        new = seen.number - self._storages
        if new < 0 or (new < len(storages) and storages[new] is seen):
            return seen.number
        self.rows.storages.append(self._encoder.content(seen))
        seen.number = number = self._storages + len(storages)
        storages.append(seen)
        return number

    def _row(self, call: int) -> tuple[int, ...]:
        """Where a call came from: its row as far as its source and its module."""
        new = call - self._calls
        return (
            (-1, -1, self._graph.source_of(call), self._graph.module_of(call))
            if new < 0
            else self.rows.calls[new]
        )


class _ForwardCalls:
    """Which recorded call made an autograd node, so that backward calls show the forward's module and line.

    Autograd numbers its nodes by creation, in each thread; the call dispatched right after a number was
    given out belongs to that node. Nodes made inside a backward pass (a reentrant checkpoint's) are kept
    apart: another thread counts them.
    """

    def __init__(self) -> None:
        self._outer: dict[int, int] = {}
        self._inner: dict[int, int] = {}
        self._inner_task = -1
        self._next = {get_ident(): torch._C._autograd._get_sequence_nr()}

    def copy(self) -> _ForwardCalls:
        """One to go on with, after which this one can still be gone on with: it shares the tables of nodes, in which
        the same calls are entered again as they were."""
        copy = _ForwardCalls.__new__(_ForwardCalls)
        copy._outer, copy._inner, copy._inner_task = self._outer, self._inner, self._inner_task
        copy._next = dict(self._next)
        return copy

    def add(self, call: int, thread: int, following: int, task: int, makes_nodes: bool) -> bool:
        """Enter ``call``. Whether autograd has made a node since the call before on its thread: the one of this call."""
        made = following != self._next.get(thread, following)
        self._next[thread] = following
        if task == -1:
            self._outer.setdefault(following - 1, call)
        elif makes_nodes:
            if task != self._inner_task:
                self._inner = {}
                self._inner_task = task
            self._inner.setdefault(following - 1, call)
        return made

    def call_of(self, node: int, task: int) -> int | None:
        """The forward call of the autograd node of a sequence number (-1: none) that ran in backward pass ``task``."""
        if node == -1:
            return None
        if self._inner and task > self._inner_task >= 0:
            return self._inner.get(node, self._outer.get(node))
        return self._outer.get(node)


def _flags(op: Op, given: tuple[Any, ...], named: tuple[tuple[str, Any], ...]) -> bytes:
    """``READS | WRITES`` of each tensor in the arguments."""
    flags: list[int] = []
    for flag, key in zip(op.flags_by_position, given, strict=False):
        flags += [flag] * _holes(key)
    for name, key in named:
        flags += [op.flags_by_name[name]] * _holes(key)
    return bytes(flags)


def _holes(key: Any) -> int:
    """How many tensors were taken out of a value."""
    if key is HOLE:
        return 1
    return sum(map(_holes, key)) if isinstance(key, tuple) else 0


def _layout(shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype, device: str) -> Layout:
    sizes = tuple(int(n) for n in shape)
    steps = tuple(int(n) for n in stride) or (0,) * len(sizes)
    return Layout(sizes, steps, str(dtype).removeprefix("torch."), device)
