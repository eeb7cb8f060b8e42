"""``OpGraph``: the record of a run, kept in columns.

A long script makes a million calls. An object a call would cost kilobytes, so a call is a row of small
integers into tables of what is distinct: overloads, argument templates, layouts, module calls, source
lines. ``graph[i]`` makes the ``OpNode`` of a row when somebody looks at it. Past a million calls the rows lie in files.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib import import_module
from itertools import repeat, starmap
from operator import attrgetter, call
from tempfile import gettempdir
from typing import Any, Generic, Literal, TypeVar

import networkx as nx
import numpy as np

from optrace.graph.columns import Columns, Ints
from optrace.graph.module_calls import ModuleCalls
from optrace.graph.nouns import (
    PHASES,
    Mark,
    ModuleCall,
    OpFacts,
    OpNode,
    Phase,
    Source,
    Storage,
    TensorMeta,
    TraceInfo,
    Value,
)
from optrace.graph.rows import Rows
from optrace.graph.spill import spilled, values

T = TypeVar("T", bound=Hashable)

EdgeKind = Literal["data", "order"]

PHASE_NUMBERS: dict[Phase, int] = {phase: number for number, phase in enumerate(PHASES)}

WRITES = 1
READS = 2

#: Calls after which the rows recorded since the last time go into files: some 60 MB of them.
SPILLED_CALLS = 1_000_000

_NBYTES, _DEVICE = attrgetter("nbytes"), attrgetter("device")


@dataclass(frozen=True, slots=True)
class Edge:
    """``dst`` must run after ``src``: it uses its ``tensor`` (``data``), or overwrites bytes that ``src``
    reads or wrote (``order``)."""

    src: int
    dst: int
    tensor: int
    kind: EdgeKind


class Table(Generic[T]):
    """Distinct values numbered by first appearance."""

    __slots__ = ("index", "rows")

    def __init__(self) -> None:
        self.rows: list[T] = []
        self.index: dict[T, int] = {}

    def add(self, value: T) -> int:
        number = self.index.get(value)
        if number is None:
            number = len(self.rows)
            self.rows.append(
                value
            )  # first: an interrupt leaves a row that nobody names, no number without a row
            self.index[value] = number
        return number

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> T:
        return self.rows[number]


@dataclass(frozen=True, slots=True)
class Layout:
    """What many tensors share."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str


class Hole:
    """The place of a tensor in an argument template; the single instance is ``HOLE``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "%"

    def __reduce__(self) -> str:
        """Copies and pickles of a graph keep the one instance."""
        return "HOLE"


HOLE = Hole()

#: An argument with its tensors taken out.
Template = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class CallTemplate:
    """The arguments and the result of a call with a hole for each tensor."""

    args: Template
    kwargs: tuple[tuple[str, object], ...]
    out: object


class OpGraph:
    """Calls in the order of their dispatch, with their tensors, storages and dependences."""

    def __init__(self, info: TraceInfo | None = None) -> None:
        self.info = info or TraceInfo()
        self.ops: list[OpFacts] = []
        self.templates: list[CallTemplate] = []
        self.layouts: Table[Layout] = Table()
        self.sources: Table[Source] = Table()
        self.module_calls = ModuleCalls()
        self.storages: list[Storage] = []
        self.tensor_names: dict[int, str] = {}
        self.marks: list[Mark] = []
        self._op_numbers: dict[str, int] = {}
        self._template_numbers: dict[str, int] = {}
        # A row a call.
        self._op = array("I")
        self._template = array("I")
        self._source = array("I")
        self._module = array("i")
        self._phase = array("B")
        self._stream = array("H")
        self._autograd = array("B")
        self._python_us = array("f")  # negative: not timed
        self._operand_end = array("Q")
        self._output_end = array("Q")
        # A row an operand or output.
        self._operands = array("I")
        self._operand_flags = array("B")
        self._outputs = array("I")
        # A row a tensor.
        self._tensor_layout = array("I")
        self._tensor_storage = array("i")
        self._tensor_offset = array("q")
        # A row a freed storage, in time order: the call after which it was gone.
        self._freed_storage = array("I")
        self._freed_after = array("i")
        self._room = SPILLED_CALLS

    # -- recording ---------------------------------------------------------------------------------

    def add_op_facts(self, facts: OpFacts) -> int:
        """The number of an overload, entered once."""
        number = self._op_numbers.get(facts.name)
        if number is None:
            number = len(self.ops)
            self.ops.append(facts)
            self._op_numbers[facts.name] = number
        return number

    def add_template(self, args: Template, kwargs: tuple[tuple[str, object], ...], out: object) -> int:
        """The number of a template. Keyed by its text, in which ``1``, ``1.0`` and ``True`` differ."""
        key = repr((args, kwargs, out))
        number = self._template_numbers.get(key)
        if number is None:
            number = len(self.templates)
            self.templates.append(CallTemplate(args, kwargs, out))
            self._template_numbers[key] = number
        return number

    def add_storage(self, storage: Storage) -> int:
        self.storages.append(storage)
        return len(self.storages) - 1

    def set_storage(self, number: int, *, nbytes: int | None = None, kind: str = "", name: str = "") -> None:
        """Correct what is known of a storage: it grew, or turned out to be a parameter."""
        known = self.storages[number]
        self.storages[number] = replace(
            known,
            nbytes=known.nbytes if nbytes is None else nbytes,
            kind=kind or known.kind,
            name=name or known.name,
        )

    def add_tensor(self, layout: int, storage: int, offset: int) -> int:
        self._tensor_layout.append(layout)
        self._tensor_storage.append(storage)
        self._tensor_offset.append(offset)
        return len(self._tensor_layout) - 1

    def add_call(
        self,
        op: int,
        template: int,
        operands: Sequence[int],
        flags: Sequence[int],
        outputs: Sequence[int],
        *,
        source: int,
        module: int = -1,
        phase: Phase = "other",
        stream: int = 0,
        autograd: bool = False,
        python_us: float = -1.0,
    ) -> int:
        """Append a call; ``flags`` holds ``READS | WRITES`` an operand; a negative ``python_us`` was not timed.
        Returns its number."""
        if len(self._op) >= self._room:
            self.spill()
        self._op.append(op)
        self._template.append(template)
        self._source.append(source)
        self._module.append(module)
        self._phase.append(PHASE_NUMBERS[phase])
        self._stream.append(stream)
        self._autograd.append(autograd)
        self._python_us.append(python_us)
        self._operands.extend(operands)
        self._operand_flags.extend(flags)
        self._outputs.extend(outputs)
        self._operand_end.append(len(self._operands))
        self._output_end.append(len(self._outputs))
        self.__dict__.pop("edges", None)
        return len(self._op) - 1

    def append_rows(self, rows: Rows, *then: tuple[Callable[[Any], object], Any]) -> None:
        """Append calls with their tensors, storages and frees; then call each function of ``then`` with its argument.

        All of it or nothing, whatever interrupts: the steps are functions of C, called from C one after the other, and
        a signal's handler and another thread run between instructions of Python.
        """
        operands, outputs = len(self._operands), len(self._outputs)
        op, template, source, module, phase, stream, autograd, operand_end, output_end = (
            zip(*rows.calls, strict=True) if rows.calls else repeat((), 9)
        )
        columns: list[tuple[array[Any], Iterable[Any]]] = [
            (self._op, op),
            (self._template, template),
            (self._source, source),
            (self._module, module),
            (self._phase, phase),
            (self._stream, stream),
            (self._autograd, autograd),
            (self._python_us, repeat(-1.0, len(rows.calls))),
            (self._operand_end, [operands + end for end in operand_end]),
            (self._output_end, [outputs + end for end in output_end]),
            (self._operands, rows.operands),
            (self._operand_flags, rows.operand_flags),
            (self._outputs, rows.outputs),
            (self._tensor_layout, rows.tensor_layout),
            (self._tensor_storage, rows.tensor_storage),
            (self._tensor_offset, rows.tensor_offset),
            (self._freed_storage, rows.freed_storage),
            (self._freed_after, rows.freed_after),
        ]
        # A number that its column cannot hold raises here, before anything is appended.
        added = [(column, array(column.typecode, values)) for column, values in columns]
        steps: list[tuple[Any, ...]] = [
            *((column.extend, values) for column, values in added),
            (self.storages.extend, rows.storages),
            (self.__dict__.pop, "edges", None),
            (self.__dict__.pop, "_frees", None),
            *then,
        ]
        deque(starmap(call, steps), maxlen=0)
        if len(self._op) >= self._room:
            self.spill()

    def set_python_us(self, number: int, us: float | None) -> None:
        """Correct what was timed before a call; None: it was not."""
        self._python_us[number] = -1.0 if us is None else us

    def add_free(self, storage: int, after: int) -> None:
        """Storage ``storage`` was gone once call ``after`` had run (-1: before the first)."""
        self._freed_storage.append(storage)
        self._freed_after.append(after)
        self.__dict__.pop("_frees", None)

    def spill(self) -> None:
        """Move the rows of all that was recorded into files; done by itself each ``SPILLED_CALLS`` calls. Where there is
        no room for them they stay in memory, and ``info.notes`` says so."""
        columns = {name: column for name, column in vars(self).items() if isinstance(column, array)}
        try:
            files = spilled(columns)
        except OSError as error:
            self._room = sys.maxsize
            note = f"the record is kept in memory: no room in {gettempdir()} ({error.strerror or error})"
            self.info = replace(self.info, notes=(*self.info.notes, note))
            return
        # At once: an interrupt finds either the old columns or the new ones.
        vars(self).update(files, _room=len(self) + SPILLED_CALLS)

    # -- reading -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._op)

    def __iter__(self) -> Iterator[OpNode]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> OpNode:
        if not 0 <= number < len(self._op):
            raise IndexError(number)
        facts = self.ops[self._op[number]]
        template = self.templates[self._template[number]]
        inputs = tuple([self.tensor(t) for t in self.operands(number)])
        outputs = tuple([self.tensor(t) for t in self.outputs(number)])
        writes, reads = _marks(bytes(self.operand_flags(number)))
        supply = iter(inputs)
        args = tuple([_fill(item, supply) for item in template.args])
        kwargs = {name: _fill(item, supply) for name, item in template.kwargs}
        return OpNode(
            id=number,
            op=facts.name,
            facts=facts,
            args=args,
            kwargs=kwargs,
            out=_fill(template.out, iter(outputs)),
            inputs=inputs,
            outputs=outputs,
            writes=writes,
            reads=reads,
            module=self.module_call(number),
            source=self.source(number),
            phase=PHASES[self._phase[number]],
            stream=self._stream[number],
            autograd=bool(self._autograd[number]),
            python_us=self.python_us(number),
            freed=self.freed_after(number),
        )

    def columns(self) -> Columns:
        """Copies of the columns as they are now."""
        python_us = values(self._python_us).astype(np.float64)
        python_us[python_us < 0] = np.nan
        freed_after = _ints(self._freed_after)
        in_time = np.argsort(freed_after, kind="stable")
        return Columns(
            op=_ints(self._op),
            template=_ints(self._template),
            phase=_ints(self._phase),
            module=_ints(self._module),
            stream=_ints(self._stream),
            autograd=values(self._autograd).astype(np.bool_),
            python_us=python_us,
            operand_start=np.concatenate(([0], _ints(self._operand_end))),
            operands=_ints(self._operands),
            operand_flags=_ints(self._operand_flags),
            output_start=np.concatenate(([0], _ints(self._output_end))),
            outputs=_ints(self._outputs),
            tensor_layout=_ints(self._tensor_layout),
            tensor_storage=_ints(self._tensor_storage),
            tensor_offset=_ints(self._tensor_offset),
            storage_bytes=np.fromiter(map(_NBYTES, self.storages), np.int64, len(self.storages)),
            storage_on_device=~np.fromiter(
                map(("cpu", "meta").__contains__, map(_DEVICE, self.storages)), np.bool_, len(self.storages)
            ),
            freed_storage=_ints(self._freed_storage)[in_time],
            freed_after=freed_after[in_time],
        )

    def streams(self) -> Ints:
        """The stream of each call."""
        return _ints(self._stream)

    def facts(self, number: int) -> OpFacts:
        return self.ops[self._op[number]]

    def is_view(self, number: int) -> bool:
        """The call writes nothing and each of its outputs is made of an input's bytes."""
        flags, outputs = self.operand_flags(number), self.outputs(number)
        if not outputs or WRITES in flags or WRITES | READS in flags:
            return False
        if self.facts(number).is_view:
            return True
        storages = self._tensor_storage
        given = {storages[t] for t in self.operands(number)} - {-1}
        return all(storages[t] in given for t in outputs)

    def phase(self, number: int) -> Phase:
        return PHASES[self._phase[number]]

    def source(self, number: int) -> Source:
        return self.sources[self._source[number]]

    def module_call(self, number: int) -> ModuleCall | None:
        module = self._module[number]
        return self.module_calls[module] if module >= 0 else None

    def stream(self, number: int) -> int:
        return self._stream[number]

    def autograd(self, number: int) -> bool:
        """As ``OpNode.autograd``."""
        return bool(self._autograd[number])

    def set_origin(self, number: int, *, source: int, module: int, phase: Phase) -> None:
        """Say where a call came from, by rows of ``sources`` and ``module_calls`` (-1: no module)."""
        self._source[number] = source
        self._module[number] = module
        self._phase[number] = PHASE_NUMBERS[phase]

    def python_us(self, number: int) -> float | None:
        """As ``OpNode.python_us``."""
        timed = self._python_us[number]
        return timed if timed >= 0 else None

    def op_of(self, number: int) -> int:
        """The row of a call in ``ops``."""
        return self._op[number]

    def source_of(self, number: int) -> int:
        """The row of a call in ``sources``."""
        return self._source[number]

    def template_of(self, number: int) -> int:
        """The row of a call in ``templates``: equal for calls with equal arguments beside their tensors."""
        return self._template[number]

    def module_of(self, number: int) -> int:
        """The row of a call in ``module_calls``, or -1."""
        return self._module[number]

    def operands(self, number: int) -> Sequence[int]:
        """Tensor numbers of a call's inputs."""
        start = self._operand_end[number - 1] if number else 0
        return self._operands[start : self._operand_end[number]]

    def operand_flags(self, number: int) -> Sequence[int]:
        start = self._operand_end[number - 1] if number else 0
        return self._operand_flags[start : self._operand_end[number]]

    def outputs(self, number: int) -> Sequence[int]:
        """Tensor numbers of a call's outputs."""
        start = self._output_end[number - 1] if number else 0
        return self._outputs[start : self._output_end[number]]

    def tensor(self, number: int) -> TensorMeta:
        layout = self.layouts[self._tensor_layout[number]]
        storage = self._tensor_storage[number]
        return TensorMeta(
            layout.shape,
            layout.stride,
            layout.dtype,
            layout.device,
            storage,
            self.storages[storage].nbytes if storage >= 0 else 0,
            self._tensor_offset[number],
            number,
        )

    @property
    def tensors(self) -> int:
        """How many tensors are numbered."""
        return len(self._tensor_layout)

    def tensor_layout(self, number: int) -> int:
        return self._tensor_layout[number]

    def tensor_storage(self, number: int) -> int:
        """The storage of a tensor, or -1."""
        return self._tensor_storage[number]

    def tensor_offset(self, number: int) -> int:
        """Elements from the start of the storage."""
        return self._tensor_offset[number]

    def freed_after(self, number: int) -> tuple[int, ...]:
        """Storages that were gone once the call had run (-1: before the first call)."""
        after, storages = self._frees
        start = bisect_left(after, number)
        return tuple(storages[start : bisect_right(after, number, lo=start)])

    @cached_property
    def _frees(self) -> tuple[array[int], array[int]]:
        """Calls and the storages that were gone after them, in the order of the calls."""
        columns = self.columns()
        return array("q", columns.freed_after.tobytes()), array("q", columns.freed_storage.tobytes())

    def step_starts(self) -> list[int]:
        """The first call of each step: where steps are marked, else the first call of all."""
        marked = sorted({mark.call for mark in self.marks if mark.kind in ("step", "run")})
        return [call for call in (0, *marked[1:]) if call < len(self)]

    @cached_property
    def edges(self) -> list[Edge]:
        """Dependences by tensor identity and through storage, by (dst, operand)."""
        from optrace.graph.dependence import dependences

        return dependences(self)

    def _repr_svg_(self) -> str | None:
        """What a notebook shows: the graph drawn, priced for the GPU that it was recorded for. By name, since
        rendering knows graphs and not the other way round."""
        picture = import_module("optrace.rendering.page.notebook").graph_svg(self)
        return None if picture is None else str(picture)

    def to_networkx(self) -> nx.MultiDiGraph:
        """A node a call with its ``OpNode`` as ``op``; an edge a dependence with its ``tensor`` and ``kind``.

        ``x + x`` has two edges. About 1.5 KB a node: for graphs to draw and rewrite, not for a million calls.
        """
        graph = nx.MultiDiGraph()
        graph.add_nodes_from((node.id, {"op": node}) for node in self)
        graph.add_edges_from(
            (edge.src, edge.dst, {"tensor": self.tensor(edge.tensor), "kind": edge.kind})
            for edge in self.edges
        )
        return graph


def _ints(column: array[int]) -> Ints:
    return values(column).astype(np.int64)


@lru_cache(maxsize=1024)
def _marks(flags: bytes) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Which operands are written, and which are read."""
    return tuple(bool(flag & WRITES) for flag in flags), tuple(bool(flag & READS) for flag in flags)


def _fill(template: object, supply: Iterator[TensorMeta]) -> Value:
    if template is HOLE:
        return next(supply)
    if isinstance(template, tuple):
        return tuple([_fill(item, supply) for item in template])
    assert template is None or isinstance(template, bool | int | float | complex | str)
    return template
