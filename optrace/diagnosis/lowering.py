"""From calls to kernels before fusion: what is stored, what is computed where it is used.

As Inductor's lowering does it: an expression is copied into whatever reads it and stored only when a library
call needs it, when it is an output, or when it is used often and is dear. Views vanish. A write in place of a
whole storage makes a new value; one of a part is a kernel that later readers wait for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, TypeVar

from optrace.cost.pricing import Costs, PricedGraph
from optrace.cost.rules import work_of
from optrace.cost.sectors import SECTOR
from optrace.cost.work import Access, Work
from optrace.cost.works import Works
from optrace.diagnosis.fusible import (
    DISPLACED,
    OVERWRITES,
    RANDOM,
    SOFTMAXES,
    ReductionShape,
    Role,
    on_device,
    operations,
    reduction_shape,
    role_of,
    split_factor,
    summed,
)
from optrace.graph import OpFacts, OpGraph, OpNode, TensorMeta

#: Inductor's limits (torch/_inductor/config.py): reads and operations beyond which an expression that is used
#: more than once is stored, and reads beyond which any is; inputs that one kernel concatenates.
READS_IF_REUSED = 4
MOST_READS = 8
MOST_OPERATIONS = 30
MOST_CONCATENATED = 8

#: Rows that one block keeps whole (torch/_inductor/choices.py); longer ones it passes over in a loop.
MOST_PERSISTENT = 1024


class Value:
    """What a storage holds from one write to the next.

    ``kernel`` stores it (None: not stored, ``STANDING``: there before the run); until then ``reads``, ``calls``
    and ``operations`` are the expression's. ``tensor`` shows it.
    """

    __slots__ = (
        "blank",
        "calls",
        "kernel",
        "live",
        "number",
        "operations",
        "reads",
        "segment",
        "tensor",
        "users",
    )

    def __init__(self, number: int, tensor: TensorMeta, segment: int, users: Users | None = None) -> None:
        self.number = number
        self.tensor = tensor
        self.segment = segment
        self.users = users or Users()
        self.live = False
        self.blank = False
        self.kernel: int | None = None
        self.reads: dict[tuple[int, int], Read] = {}
        self.calls: frozenset[int] = frozenset()
        self.operations = 0


STANDING = -1


@dataclass(frozen=True, slots=True)
class Read:
    """``aligned``: element for element in the order in which the reader writes."""

    value: Value
    access: Access
    aligned: bool


@dataclass(slots=True)
class Users:
    """Who reads a value: how many calls, whether a library is among them, whether all are pointwise."""

    calls: int = 0
    extern: bool = False
    pointwise: bool = True
    segments: set[int] = field(default_factory=set)


KernelSort = Literal["pointwise", "reduction", "foreach", "extern"]


@dataclass(slots=True)
class Kernel:
    """One generated kernel before fusion, or one library call.

    ``rows`` and ``length`` are its loops (length 1: no reduction). ``after`` are kernels that it waits for
    besides those whose values it reads. ``work`` is a library call's price, ``node`` the call as it is made then. ``online``:
    elements of which it keeps maximum and sum of exponentials at once.
    """

    sort: KernelSort
    calls: frozenset[int]
    rows: int
    length: int
    segment: int
    reads: dict[tuple[int, int], Read]
    writes: list[Value]
    after: set[int] = field(default_factory=set)
    work: Work | None = None
    node: OpNode | None = None
    lists: int = 0
    online: int = 0


@dataclass(frozen=True, slots=True)
class Lowered:
    """Kernels in an order in which they can run; ``roles`` a call; random numbers that a call draws."""

    kernels: list[Kernel]
    roles: Sequence[Role]
    random: Mapping[int, int]


def lower(priced: PricedGraph) -> Lowered:
    """The kernels of a priced graph."""
    return _Lowering(priced).run()


class _Lowering:
    """The state of one pass over the calls."""

    def __init__(self, priced: PricedGraph) -> None:
        self.graph = graph = priced.graph
        self.costs = priced.costs
        self.target = priced.pricing.target(graph.info)
        self.values = 0
        self.kernels: list[Kernel] = []
        self.readers: dict[int, list[int]] = {}
        works = priced.costs.works
        examples = [graph[call] for call in works.first.tolist()]
        self.roles = _by_call(works, map(role_of, examples, works.distinct))
        self.read_bytes = _by_call(works, map(_read_bytes, examples, works.distinct))
        self.arguments: dict[int, str] = {}
        self.segments = _segments(graph, priced.costs)
        self.channels_last = _prefers_channels_last(graph, self.roles)
        self.version: Counter[int] = Counter()
        self.current: dict[int, Value] = {}
        self.random: dict[int, int] = {}
        self.pending: dict[int, list[Value]] = {}
        self.same: dict[object, tuple[Value, ...]] = {}
        self.converted: set[int] = set()
        # The partitioner of a training step merges equal calls; the compiler of an inference step does not.
        self.merges_equal = any(graph.phase(call) == "backward" for call in range(len(graph)))
        self.users = self._count_users()
        self.written_later = self.version
        self.version = Counter()

    def run(self) -> Lowered:
        for call in range(len(self.graph)):
            role = self.roles[call]
            if role == "view":
                self._view(call)
                continue
            node = self.graph[call]
            if role == "pointwise":
                self._pointwise(node)
            elif role == "reduction":
                self._reduction(node)
            elif role == "scatter":
                self._scatter(node)
            elif role == "foreach":
                self._foreach(node)
            else:
                self._extern(node)
        self._store_what_is_left()
        return Lowered(_needed(self.kernels), self.roles, self.random)

    # -- values ------------------------------------------------------------------------------------

    def _count_users(self) -> dict[tuple[int, int], Users]:
        users: dict[tuple[int, int], Users] = {}
        graph = self.graph
        for call in range(len(graph)):
            role = self.roles[call]
            seen: set[tuple[int, int]] = set()
            flags = graph.operand_flags(call)
            operands = graph.operands(call)
            if role != "view":
                for tensor in operands:
                    storage = graph.tensor_storage(tensor)
                    key = (storage, self.version[storage])
                    if storage >= 0 and key not in seen:
                        seen.add(key)
                        user = users.setdefault(key, Users())
                        user.calls += 1
                        user.extern |= role == "extern"
                        user.pointwise &= role == "pointwise"
                        user.segments.add(self.segments[call])
                for storage in {
                    graph.tensor_storage(t) for t, flag in zip(operands, flags, strict=True) if flag & 1
                }:
                    self.version[storage] += 1
        return users

    def _value(self, tensor: TensorMeta, segment: int) -> Value:
        """A new value of the tensor's storage."""
        key = (tensor.storage, self.version[tensor.storage])
        return self._new(tensor, segment, self.users.get(key))

    def _new(self, tensor: TensorMeta, segment: int, users: Users | None = None) -> Value:
        self.values += 1
        return Value(self.values, tensor, segment, users)

    def _holding(self, tensor: TensorMeta) -> Value:
        """What the tensor's storage holds now; one that nobody made stood before the run."""
        value = self.current.get(tensor.storage)
        if value is None:
            value = self.current[tensor.storage] = self._value(tensor, -1)
            value.kernel = STANDING
        return value

    def _store(self, value: Value) -> None:
        """Make a kernel of an expression."""
        if value.kernel is not None:
            return
        kernel = Kernel(
            "pointwise",
            value.calls,
            max(1, value.tensor.numel),
            1,
            value.segment,
            value.reads,
            [value],
        )
        self._add(kernel)

    def _add(self, kernel: Kernel) -> None:
        number = len(self.kernels)
        self.kernels.append(kernel)
        for value in kernel.writes:
            value.kernel = number
        for value in values_read(kernel):
            self.readers.setdefault(value.number, []).append(number)

    def _reads(self, node: OpNode, shape_of: TensorMeta, skip: Iterable[int] = ()) -> _Expression:
        """What the call reads, with expressions that it reads put in their place."""
        found = _Expression()
        segment = self.segments[node.id]
        passed = set(skip)
        displaced = node.id if node.facts.packet in DISPLACED else None
        sizes = self.read_bytes[node.id]
        for tensor, reads, nbytes in zip(node.inputs, node.reads, sizes, strict=True):
            if (
                not reads
                or tensor.storage < 0
                or not on_device(tensor)
                or tensor.id in passed
                or not tensor.numel
            ):
                continue
            value = self._holding(tensor)
            if value.blank:
                continue
            aligned = displaced is None and _aligned(tensor, shape_of)
            if value.kernel is None and value.segment != segment and not self._recomputed(value):
                self._store(value)
            if value.kernel is None:
                most = None if displaced is None else shape_of.numel * SECTOR
                found.take(value, aligned=aligned, displaced=displaced, most=most)
            else:
                access = Access(tensor, tensor.nbytes if nbytes is None else nbytes)
                found.read(value, access, aligned=aligned, displaced=displaced)
        return found

    def _recomputed(self, value: Value) -> bool:
        """Whether another part of the program computes the expression again instead of loading it: where what
        it is made of is no larger (the min-cut partitioner of torch._functorch keeps the fewest bytes)."""
        return sum(read.access.nbytes for read in value.reads.values()) <= value.tensor.nbytes

    def _define(self, values: Sequence[Value], expression: _Expression, node: OpNode) -> None:
        """Let new values be expressions, and store those that are better stored."""
        calls = expression.calls | {node.id}
        count = expression.operations + operations(node)
        for value in values:
            value.reads, value.calls, value.operations = expression.reads, calls, count
            self.current[value.tensor.storage] = value
            for read in expression.reads.values():
                self.pending.setdefault(read.value.number, []).append(value)
        reads = len(expression.reads)
        for value in values:
            often = value.users.calls > 1
            if (
                reads > MOST_READS
                or count > MOST_OPERATIONS
                or (often and (reads > READS_IF_REUSED or value.users.extern))
            ):
                self._store(value)

    def _written(self, node: OpNode) -> list[TensorMeta]:
        """The tensors of a pointwise call's results: new ones, and operands that it changes."""
        given = {tensor.storage for tensor in node.inputs}
        changed = [tensor for tensor, writes in zip(node.inputs, node.writes, strict=True) if writes]
        new = [t for t in node.outputs if t.storage >= 0 and t.storage not in given and on_device(t)]
        return changed + new

    # -- calls -------------------------------------------------------------------------------------

    def _view(self, call: int) -> None:
        """Outputs of their own storage (``lift_fresh``) hold what the input holds."""
        graph = self.graph
        operands = graph.operands(call)
        given = {graph.tensor_storage(tensor) for tensor in operands}
        for tensor in graph.outputs(call):
            storage = graph.tensor_storage(tensor)
            if storage not in given and operands:
                self.current[storage] = self._holding(graph.tensor(operands[0]))

    def _pointwise(self, node: OpNode) -> None:
        written = self._written(node)
        if not written:
            return
        if not self.costs.work(node.id).launches:
            self._allocate(node, written)
            return
        packet = node.facts.packet
        shown = max(written, key=lambda tensor: tensor.numel)
        if packet in RANDOM:
            self.random[node.id] = shown.numel
        if packet in ("aten.cat", "aten.stack") and self._concatenates(node, shown):
            return
        key = self._key(node) if packet not in RANDOM else None
        if key is not None and key in self.same:
            for tensor, value in zip(written, self.same[key], strict=True):
                self.current[tensor.storage] = value
            return
        if packet in ("aten.clone", "aten._to_copy") and self._copies_nothing(node, shown):
            self.current[shown.storage] = self._holding(node.inputs[0])
            return
        skip = [node.inputs[0].id] if packet in OVERWRITES and node.writes[0] else []
        expression = self._reads(node, shown, skip)
        values = []
        for tensor, in_place in zip(
            written, [True] * sum(node.writes) + [False] * len(written), strict=False
        ):
            if in_place:
                held = self._holding(tensor)
                if tensor.nbytes < tensor.storage_bytes - 511 or (held.kernel == STANDING and not held.blank):
                    self._write_part(node, tensor, held, expression)
                    continue
                self.version[tensor.storage] += 1
            values.append(self._value(tensor, self.segments[node.id]))
        if values:
            self._define(values, expression, node)
            if key is not None:
                self.same[key] = tuple(values)

    def _allocate(self, node: OpNode, written: Sequence[TensorMeta]) -> None:
        """Nothing is computed: memory without contents, or empty tensors."""
        for tensor, in_place in zip(
            written, [True] * sum(node.writes) + [False] * len(written), strict=False
        ):
            if not in_place:
                value = self._value(tensor, self.segments[node.id])
                value.kernel, value.blank = STANDING, True
                self.current[tensor.storage] = value

    def _write_part(self, node: OpNode, tensor: TensorMeta, held: Value, expression: _Expression) -> None:
        """A kernel that writes into a value that stays: after all that read what it changes."""
        self._settle(held)
        self.version[tensor.storage] += 1
        value = self._value(tensor, self.segments[node.id])
        value.live = held.live or held.kernel == STANDING
        after = set(self.readers.get(held.number, ()))
        if held.kernel is not None and held.kernel >= 0:
            after.add(held.kernel)
        self.current[tensor.storage] = value
        self._add(
            Kernel(
                "pointwise",
                expression.calls | {node.id},
                max(1, tensor.numel),
                1,
                self.segments[node.id],
                expression.reads,
                [value],
                after=after,
            )
        )
        value.live = True

    def _settle(self, value: Value) -> None:
        """Store a value and the expressions that still read it."""
        self._store(value)
        for reader in self.pending.pop(value.number, ()):
            self._store(reader)

    def _reduction(self, node: OpNode) -> None:
        packet = node.facts.packet
        outputs = [t for t in node.outputs if t.storage >= 0 and on_device(t) and t.numel]
        if not outputs:
            return
        key = self._key(node)
        if key is not None and key in self.same:
            for tensor, value in zip(outputs, self.same[key], strict=True):
                self.current[tensor.storage] = value
            return
        shape = reduction_shape(node)
        if self.channels_last and "group_norm" in packet:
            shape = replace(shape, inner=False)
        source = summed(node)
        segment = self.segments[node.id]
        expression = self._reads(node, source)
        large = [t for t in outputs if t.numel == source.numel and t.numel > shape.rows]
        small = [t for t in outputs if t not in large]
        statistics = [self._value(tensor, segment) for tensor in small]
        if not statistics:
            statistics = [self._new(_scratch(source, shape.rows, node), segment)]
        self._reduce(node, shape, expression, statistics)
        for value in statistics:
            if value.tensor.storage >= 0:
                self.current[value.tensor.storage] = value
        if packet == "aten.native_layer_norm_backward":
            # The weight's and the bias's gradients sum over the rows: another pass over the same tensors.
            columns = ReductionShape(shape.length, shape.rows, inner=False)
            self._reduce(node, columns, expression, [self._new(statistics[0].tensor, segment)], keep=True)
        if large:
            normalized = expression.copy()
            for value in statistics:
                if value.tensor.numel <= shape.rows:
                    normalized.read(value, Access(value.tensor, value.tensor.nbytes), aligned=True)
            values = [self._value(tensor, segment) for tensor in large]
            self._define(values, normalized, node)
        if key is not None:
            self.same[key] = tuple(self.current[t.storage] for t in outputs)

    def _reduce(
        self,
        node: OpNode,
        shape: ReductionShape,
        expression: _Expression,
        statistics: list[Value],
        *,
        keep: bool = False,
    ) -> None:
        """One kernel, or a chain of them where there are few rows: over parts, then over what those gave."""
        segment = self.segments[node.id]
        calls, reads = expression.calls | {node.id}, expression.reads
        for value in statistics:
            value.live |= keep
        while (parts := split_factor(shape, self.target.sm_count)) > 1:
            rows = shape.rows * parts
            tensor = _scratch(statistics[0].tensor, rows, node)
            partial = self._new(tensor, segment)
            length = max(2, shape.length // parts)
            self._add(Kernel("reduction", calls, rows, length, segment, reads, [partial]))
            calls = frozenset({node.id})
            reads = {(partial.number, 0): Read(partial, Access(tensor, tensor.nbytes), aligned=True)}
            shape = ReductionShape(shape.rows, parts, shape.inner)
        kernel = Kernel("reduction", calls, shape.rows, shape.length, segment, reads, statistics)
        if node.facts.packet in SOFTMAXES and shape.length > MOST_PERSISTENT:
            kernel.online = shape.rows * shape.length
        self._add(kernel)

    def _scatter(self, node: OpNode) -> None:
        """Clear or copy what is added to, then a kernel over what is added."""
        written = self._written(node)
        if not written:
            return
        tensor = written[0]
        expression = self._reads(node, tensor)
        segment = self.segments[node.id]
        after: set[int] = set()
        if any(node.writes):
            held = self._holding(tensor)
            self._settle(held)
            self.version[tensor.storage] += 1
        else:
            cleared = self._new(tensor, segment)
            cleared.live = True
            self._add(
                Kernel("pointwise", frozenset({node.id}), max(1, tensor.numel), 1, segment, {}, [cleared])
            )
            after = {len(self.kernels) - 1}
        values = max((t.numel for t in node.inputs if on_device(t) and t.id != tensor.id), default=1)
        value = self._value(tensor, segment)
        self.current[tensor.storage] = value
        self._add(
            Kernel(
                "pointwise",
                expression.calls | {node.id},
                max(1, values),
                1,
                segment,
                expression.reads,
                [value],
                after=after,
            )
        )
        value.live = True

    def _foreach(self, node: OpNode) -> None:
        """A pointwise op over lists: stored at once, fused with its neighbours over the same lists later."""
        segment = self.segments[node.id]
        reads: dict[tuple[int, int], Read] = {}
        sizes = self.read_bytes[node.id]
        for tensor, is_read, nbytes in zip(node.inputs, node.reads, sizes, strict=True):
            if is_read and on_device(tensor) and tensor.numel:
                value = self._holding(tensor)
                self._store(value)
                access = Access(tensor, tensor.nbytes if nbytes is None else nbytes)
                reads[(value.number, 0)] = Read(value, access, aligned=True)
        values = []
        written = self._written(node)
        given = {tensor.storage for tensor in node.inputs}
        for tensor in written:
            if tensor.storage in self.current or tensor.storage in given:
                self.version[tensor.storage] += 1
            value = self._value(tensor, segment)
            value.live = tensor.storage in given
            values.append(value)
        for value in values:
            self.current[value.tensor.storage] = value
        if values:
            self._add(
                Kernel(
                    "foreach",
                    frozenset({node.id}),
                    sum(v.tensor.numel for v in values),
                    1,
                    segment,
                    reads,
                    values,
                    lists=len(values),
                )
            )

    def _extern(self, node: OpNode) -> None:
        packet = node.facts.packet
        segment = self.segments[node.id]
        bias: TensorMeta | None = None
        called = node
        if not self.costs.work(node.id).launches:
            work = self.costs[node.id].work  # the CPU does it
        elif packet == "aten.addmm" and self._unfused(node):
            bias, called = _without_bias(node)
            work = work_of(called, self.target)
        elif packet == "aten.convolution":
            bias, called, work = self._convolution(node)
        elif packet == "aten.convolution_backward":
            called = self._convolution_backward(node)
            work = work_of(called, self.target)
        else:
            work = self.costs[node.id].work
        reads: dict[tuple[int, int], Read] = {}
        nbytes = {access.tensor.id: access.nbytes for access in work.reads}
        after: set[int] = set()
        for tensor, is_read in zip(node.inputs, node.reads, strict=True):
            if tensor.storage < 0 or not tensor.numel or (bias is not None and tensor.id == bias.id):
                continue
            value = self._holding(tensor)
            self._store(value)
            if is_read:
                access = Access(tensor, nbytes.get(tensor.id, 0))
                reads[(value.number, tensor.id)] = Read(value, access, aligned=False)
            elif value.kernel is not None and value.kernel >= 0:
                after.add(value.kernel)
        values = []
        given = {tensor.storage for tensor in node.inputs}
        for tensor, writes in zip(node.inputs, node.writes, strict=True):
            if writes and tensor.storage >= 0:
                self._settle(self._holding(tensor))
                self.version[tensor.storage] += 1
                values.append(self._value(tensor, segment))
                values[-1].live = True
        new = (t for t in node.outputs if t.storage >= 0 and t.storage not in given)
        values.extend(self._value(tensor, segment) for tensor in new)
        kernel = Kernel("extern", frozenset({node.id}), 0, 0, segment, reads, values, after, work, called)
        self._add(kernel)
        for value in values:
            self.current[value.tensor.storage] = value
        if bias is not None and values:
            self._add_bias(node, bias, values[0])

    def _add_bias(self, node: OpNode, bias: TensorMeta, product: Value) -> None:
        expression = _Expression()
        expression.read(product, Access(product.tensor, product.tensor.nbytes), aligned=True)
        held = self._holding(bias)
        self._store(held)
        expression.read(held, Access(bias, bias.nbytes), aligned=False)
        value = self._new(product.tensor, product.segment, product.users)
        self._define([value], expression, node)

    def _unfused(self, node: OpNode) -> bool:
        """A bias leaves the product where every reader is pointwise (torch/_inductor/fx_passes/post_grad.py)."""
        bias = node.arg("self")
        output = node.outputs[0]
        users = self.users.get((output.storage, 0), Users())
        plain = node.arg("beta", 1) == 1 and node.arg("alpha", 1) == 1
        return isinstance(bias, TensorMeta) and plain and users.calls > 0 and users.pointwise

    def _convolution(self, node: OpNode) -> tuple[TensorMeta | None, OpNode, Work]:
        """Without its bias, which is added by what follows; in channels-last where the program prefers that, with
        a kernel for each operand that has to be brought into it."""
        called = node
        bias = node.arg("bias")
        if not isinstance(bias, TensorMeta):
            bias = None
        else:
            called = _replace_argument(called, "bias", None)
        if self.channels_last and len(node.tensor("input").shape) == 4:
            for name in ("input", "weight"):
                tensor = called.tensor(name)
                value = self._holding(tensor)
                laid = _channels_last(tensor)
                if laid.stride != tensor.stride:
                    if (
                        value.kernel == STANDING
                        and not _is_both(tensor)
                        and value.number not in self.converted
                    ):
                        self.converted.add(value.number)
                        self._copy(node, tensor, value)
                    called = _replace_argument(called, name, laid)
            called = replace(
                called, out=_channels_last(called.outputs[0]), outputs=(_channels_last(called.outputs[0]),)
            )
        return bias, called, work_of(called, self.target)

    def _convolution_backward(self, node: OpNode) -> OpNode:
        """Where convolutions are channels-last, so are the activations that were kept and the gradients that come back;
        the weight is the program's own, which the library brings into that layout."""
        source = node.tensor("input")
        if not self.channels_last or len(source.shape) != 4:
            return node
        called = node
        for name in ("grad_output", "input"):
            called = _replace_argument(called, name, _channels_last(called.tensor(name)))
        outputs = tuple(_channels_last(t) if t.shape == source.shape else t for t in called.outputs)
        return replace(called, outputs=outputs)

    def _copy(self, node: OpNode, tensor: TensorMeta, value: Value) -> None:
        copied = self._new(replace(tensor, storage=-2 - tensor.id), self.segments[node.id])
        copied.live = True
        reads = {(value.number, 0): Read(value, Access(tensor, tensor.nbytes), aligned=False)}
        self._add(
            Kernel(
                "pointwise",
                frozenset({node.id}),
                max(1, tensor.numel),
                1,
                self.segments[node.id],
                reads,
                [copied],
            )
        )

    # -- copies ------------------------------------------------------------------------------------

    def _copies_nothing(self, node: OpNode, output: TensorMeta) -> bool:
        """A copy of the same type and layout of a storage that nobody writes afterwards."""
        source = node.inputs[0]
        return (
            on_device(source)
            and source.dtype == output.dtype
            and source.stride == output.stride
            and source.nbytes == output.nbytes
            and not self.written_later[source.storage]
            and not self.written_later[output.storage]
        )

    def _concatenates(self, node: OpNode, output: TensorMeta) -> bool:
        """Parts written into their places by kernels of their own: unless few expressions make one kernel
        (torch/_inductor/lowering.py, ``cat``)."""
        parts = [t for t in node.inputs if t.numel and on_device(t)]
        if len(parts) < 2:
            return False
        held = [self._holding(tensor) for tensor in parts]
        copied = [
            value.kernel is None
            or value.kernel == STANDING
            or (self.kernels[value.kernel].sort == "extern" and len(self.kernels[value.kernel].writes) > 1)
            for value in held
        ]
        users = self.users.get((output.storage, 0), Users())
        if len(parts) <= MOST_CONCATENATED and (
            all(copied) or (any(copied) and users.pointwise and users.calls > 0)
        ):
            return False
        segment = self.segments[node.id]
        result = self._value(output, segment)
        written: list[Value] = []
        after: set[int] = set()
        for tensor, value, is_copied in zip(parts, held, copied, strict=True):
            if not is_copied:
                assert value.kernel is not None
                after.add(value.kernel)
                continue
            expression = _Expression()
            if value.kernel is None:
                expression.take(value, aligned=True)
            else:
                expression.read(value, Access(tensor, tensor.nbytes), aligned=False)
            part = self._new(replace(tensor, storage=output.storage, id=output.id), segment)
            part.live = True
            self._add(
                Kernel(
                    "pointwise",
                    expression.calls | {node.id},
                    max(1, tensor.numel),
                    1,
                    segment,
                    expression.reads,
                    [part],
                )
            )
            after.add(len(self.kernels) - 1)
            written.append(part)
        # Who reads the whole waits for the last part.
        last = max(after)
        result.kernel = last
        self.kernels[last].writes.append(result)
        self.kernels[last].after |= after - {last}
        self.current[output.storage] = result
        return True

    def _key(self, node: OpNode) -> object:
        """Equal for calls that compute the same from the same; None where such are not merged."""
        if not self.merges_equal or any(node.writes):
            return None
        operands = tuple(
            (
                self._holding(t).number if t.storage >= 0 and on_device(t) else t.id,
                t.shape,
                t.stride,
                t.offset,
            )
            for t in node.inputs
        )
        template = self.graph.template_of(node.id)
        plain = self.arguments.get(template)
        if plain is None:
            plain = self.arguments[template] = _plain(node)
        return (node.op, plain, operands, self.segments[node.id])

    def _store_what_is_left(self) -> None:
        """Outputs: what the run leaves behind, and what is there until its last call without being read by it; but not
        what only the step's own names hold until it returns. Those go before what it returns does, of which something
        is read by no call."""
        graph = self.graph
        last = len(graph) - 1
        freed = {storage for call in range(-1, last) for storage in graph.freed_after(call)}
        if last >= 0:
            operands = {graph.tensor_storage(tensor) for tensor in graph.operands(last)}
            at_end = graph.freed_after(last)
            freed |= operands.intersection(at_end)
            results = {graph.tensor_storage(tensor) for tensor in graph.outputs(last)}
            is_read = [s in self.current and self.current[s].users.calls > 0 for s in at_end]
            unread = [place for place, read in enumerate(is_read) if not read]
            # What is returned may stay as well.
            before = len(at_end) if not results.issubset(at_end) else max(unread, default=0)
            freed.update(s for s, read in zip(at_end[:before], is_read, strict=False) if read)
        for storage, value in list(self.current.items()):
            if value.kernel != STANDING and storage not in freed:
                value.live = True
                self._store(value)


class _Expression:
    """Reads and operations gathered for a call."""

    __slots__ = ("calls", "operations", "reads")

    def __init__(self) -> None:
        self.reads: dict[tuple[int, int], Read] = {}
        self.calls: frozenset[int] = frozenset()
        self.operations = 0

    def copy(self) -> _Expression:
        other = _Expression()
        other.reads = dict(self.reads)
        other.calls, other.operations = self.calls, self.operations
        return other

    def read(self, value: Value, access: Access, *, aligned: bool, displaced: int | None = None) -> None:
        """``displaced``: the call that reads other elements than those at the result's place."""
        tensor = access.tensor
        key = (value.number, hash((tensor.shape, tensor.stride, tensor.offset, displaced)))
        known = self.reads.get(key)
        if known is None or (aligned and not known.aligned):
            self.reads[key] = Read(value, access, aligned)

    def take(
        self, value: Value, *, aligned: bool, displaced: int | None = None, most: int | None = None
    ) -> None:
        """What an expression reads; where it is ``displaced`` those are other elements than its other readers', and no more
        than ``most`` bytes of each tensor."""
        for key, read in value.reads.items():
            if most is not None and read.access.nbytes > most:
                read = replace(read, access=replace(read.access, nbytes=most))
            if displaced is not None:
                key = (key[0], hash((key[1], displaced)))
            both = read.aligned and aligned
            known = self.reads.get(key)
            if known is None or (both and not known.aligned):
                self.reads[key] = read if both == read.aligned else Read(read.value, read.access, both)
        self.calls |= value.calls
        self.operations += value.operations


def _scratch(like: TensorMeta, count: int, node: OpNode) -> TensorMeta:
    """A tensor of the generated code's own: sums in float32."""
    return replace(
        like,
        shape=(count,),
        stride=(1,),
        dtype="float32",
        storage=-2 - node.id,
        storage_bytes=4 * count,
        offset=0,
        id=-1,
    )


def _aligned(tensor: TensorMeta, written: TensorMeta) -> bool:
    """Read in the order in which the result is written, or one element a row of it."""
    if tensor.numel != written.numel:
        return False
    order = _order(tensor.shape, tensor.stride)
    return (
        order == _order(written.shape, written.stride)
        or tensor.is_contiguous == written.is_contiguous is True
    )


@lru_cache(maxsize=4096)
def _order(shape: tuple[int, ...], stride: tuple[int, ...]) -> list[int]:
    """Sizes above one, widest stride first."""
    dims = [(step, size) for step, size in zip(stride, shape, strict=True) if size > 1]
    return (
        [size for _, size in sorted(dims, key=lambda dim: -dim[0])]
        if dims == sorted(dims, reverse=True)
        else [-position for position in sorted(range(len(dims)), key=lambda place: -dims[place][0])]
    )


T = TypeVar("T")


def _by_call(works: Works, facts: Iterable[T]) -> list[T]:
    """What is known of each distinct work, by call."""
    distinct = list(facts)
    return [distinct[number] for number in works.of.tolist()]


def _read_bytes(node: OpNode, work: Work) -> tuple[int | None, ...]:
    """How much of each operand the work reads; None where it does not name it."""
    nbytes = {access.tensor.id: access.nbytes for access in work.reads}
    return tuple([nbytes.get(tensor.id) for tensor in node.inputs])


def _segments(graph: OpGraph, costs: Costs) -> list[int]:
    """A number a call: nothing is fused across a change of phase or stream, or across a wait of the host."""
    numbers: dict[object, int] = {}
    found = []
    waits = 0
    for call, wait in enumerate(costs.host_wait.tolist()):
        key = (graph.phase(call), graph.stream(call), waits)
        found.append(numbers.setdefault(key, len(numbers)))
        waits += wait
    return found


def _prefers_channels_last(graph: OpGraph, roles: Sequence[Role]) -> bool:
    """Whether Inductor brings a program's convolutions into channels-last (``decide_layout_opt`` of
    torch/_inductor/graph.py): in inference where the arithmetic, weighted by what it measured for each kind of
    convolution, gets cheaper; in training unless a grouped, a narrowing or no wide convolution is there."""
    flops: Counter[str] = Counter()
    convolutions = 0
    training = any(graph.phase(call) == "backward" for call in range(len(graph)))
    for call in range(len(graph)):
        if roles[call] != "extern" or graph.facts(call).packet != "aten.convolution":
            continue
        node = graph[call]
        weight, output = node.tensor("weight"), node.outputs[0]
        if len(weight.shape) != 4 or not on_device(output):
            continue
        convolutions += 1
        out, inside, height, width = weight.shape
        groups = node.arg("groups", 1)
        if isinstance(groups, int) and groups > 1 and inside > 1:
            sort = "grouped"
        elif out <= 64 and inside <= 64:
            sort = "small"
        elif out * 2 <= inside and height > 1:
            sort = "narrowing"
        else:
            sort = "plain"
        flops[sort] += 2 * output.numel * inside * height * width
    if not convolutions or len(graph) >= 300 * convolutions:
        return False
    if training:
        return not flops["grouped"] and not flops["narrowing"] and bool(flops["plain"])
    weighted = (
        1.358 * flops["grouped"]
        + 0.783 * flops["small"]
        + 0.725 * flops["narrowing"]
        + 0.823 * flops["plain"]
    )
    return weighted <= flops.total()


def _without_bias(node: OpNode) -> tuple[TensorMeta, OpNode]:
    """``mm`` for ``addmm``, and its bias."""
    first, second = node.tensor("mat1"), node.tensor("mat2")
    facts = OpFacts("aten.mm.default", arg_names=("self", "mat2"))
    product = replace(
        node,
        op=facts.name,
        facts=facts,
        args=(first, second),
        kwargs={},
        inputs=(first, second),
        writes=(False, False),
        reads=(True, True),
    )
    return node.tensor("self"), product


def _replace_argument(node: OpNode, name: str, value: TensorMeta | None) -> OpNode:
    """The call with another tensor, or none, for one of its arguments."""
    old = node.tensor(name)
    args = tuple(value if item is old else item for item in node.args)
    kwargs = {key: value if item is old else item for key, item in node.kwargs.items()}
    kept = [
        (i, w, r)
        for i, w, r in zip(node.inputs, node.writes, node.reads, strict=True)
        if i.id != old.id or value
    ]
    inputs = tuple(value if i.id == old.id and value is not None else i for i, _, _ in kept)
    return replace(
        node,
        args=args,
        kwargs=kwargs,
        inputs=inputs,
        writes=tuple(w for _, w, _ in kept),
        reads=tuple(r for _, _, r in kept),
    )


def _channels_last(tensor: TensorMeta) -> TensorMeta:
    batch, channels, height, width = tensor.shape
    return (
        replace(tensor, stride=(channels * height * width, 1, width * channels, channels))
        if batch
        else tensor
    )


def _is_both(tensor: TensorMeta) -> bool:
    """Contiguous and channels-last are the same: one channel, or one position."""
    return tensor.shape[1] == 1 or (tensor.shape[2] == 1 and tensor.shape[3] == 1)


def _plain(node: OpNode) -> str:
    """The arguments that are no tensors."""

    def bare(item: object) -> object:
        if isinstance(item, TensorMeta):
            return "%"
        if isinstance(item, tuple):
            return tuple(bare(part) for part in item)
        return item

    return repr((bare(node.args), [(name, bare(value)) for name, value in sorted(node.kwargs.items())]))


def _needed(kernels: list[Kernel]) -> list[Kernel]:
    """Without generated kernels whose results nobody reads, renumbered."""
    read: set[int] = set()
    kept: list[int] = []
    waited: set[int] = set()
    for number in range(len(kernels) - 1, -1, -1):
        kernel = kernels[number]
        if (
            kernel.sort in ("extern", "foreach")
            or number in waited
            or any(value.live or value.number in read for value in kernel.writes)
        ):
            kept.append(number)
            read.update(item.value.number for item in kernel.reads.values())
            waited |= kernel.after
    kept.reverse()
    renumbered = {old: new for new, old in enumerate(kept)}
    for old in kept:
        kernel = kernels[old]
        kernel.after = {renumbered[number] for number in kernel.after if number in renumbered}
        for value in kernel.writes:
            value.kernel = renumbered[old]
    return [kernels[old] for old in kept]


def values_read(kernel: Kernel) -> Iterator[Value]:
    """The values that a kernel reads, each once."""
    seen: set[int] = set()
    for item in kernel.reads.values():
        if item.value.number not in seen:
            seen.add(item.value.number)
            yield item.value
