"""What a compiler of the kind of Inductor would fuse, over the dependence graph.

Kernels that share bytes are merged, those that share most first, where their loops agree (a reduction takes in
what runs over its elements or over its rows), and where no third kernel has to run between them. That is what
torch/_inductor/scheduler.py does with its defaults, but for autotuning and other loop orders. Products are calls of
a library; where ``epilogues`` are asked for they are generated too and take in the pointwise kernel behind and
before them, as ``mode="max-autotune"`` does where its templates win.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from optrace.cost.pricing import Costs, PricedGraph
from optrace.cost.work import Access, KernelKind, Work
from optrace.diagnosis.fusible import ONLINE_SOFTMAX_FLOPS, RANDOM_FLOPS, Role
from optrace.diagnosis.lowering import Kernel, Lowered, Value, lower, values_read
from optrace.graph import OpNode

#: Inductor's limits (torch/_inductor/config.py): kernels merged into one, bytes that must be shared, and the
#: arguments of one kernel over lists of tensors.
MOST_MERGED = 64
FEWEST_SHARED_BYTES = 10
MOST_ARGUMENTS = 250

#: Products that Inductor has templates for.
PRODUCTS = frozenset({"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"})

_ROUNDS = 3
_MOST_VISITED = 2000


@dataclass(frozen=True, slots=True)
class Step:
    """One launch, or one library call, of the compiled program.

    ``calls`` are the eager calls computed in it; ``reads`` what it takes from outside, each byte once, ``writes``
    what others use. ``work`` is its price. A ``region`` is generated code; else a library does it, called as ``node``.
    """

    calls: tuple[int, ...]
    work: Work
    region: bool
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    segment: int
    node: OpNode | None = None


@dataclass(frozen=True, slots=True)
class Fusion:
    """The compiled program's steps, in an order in which they can run, and the role of each eager call."""

    steps: tuple[Step, ...]
    roles: Sequence[Role]

    @property
    def regions(self) -> tuple[Step, ...]:
        """Steps that stand for more than one eager call."""
        return tuple(step for step in self.steps if step.region and len(step.calls) > 1)


def fuse(priced: PricedGraph, *, epilogues: bool = False) -> Fusion:
    """The compiled form of a priced graph; ``epilogues``: products are generated code that pointwise neighbours go
    into."""
    lowered = lower(priced)
    groups = _Groups(lowered.kernels)
    groups.merge()
    if epilogues:
        groups.take_into_products()
    steps = (
        _step([lowered.kernels[number] for number in members], priced.costs, lowered, groups)
        for members in groups.ordered()
    )
    return Fusion((*_seeds(lowered), *steps), lowered.roles)


def _seeds(lowered: Lowered) -> Iterator[Step]:
    """Each compiled part that draws random numbers draws its seeds first, in a kernel of its own."""
    drawing = {kernel.segment for kernel in lowered.kernels if not kernel.calls.isdisjoint(lowered.random)}
    for segment in sorted(drawing):
        yield Step((), Work(kernels=1, kind="elementwise", source="rule"), False, (), (), segment)


def _step(members: Sequence[Kernel], costs: Costs, lowered: Lowered, groups: _Groups) -> Step:
    first = members[0]
    calls = tuple(sorted(frozenset().union(*(kernel.calls for kernel in members))))
    inside = {value.number for kernel in members for value in kernel.writes}
    reads = tuple(_outside(members, inside))
    written: dict[int, Access] = {}
    mine = {groups.group_of(kernel) for kernel in members}
    for kernel in members:
        for value in kernel.writes:
            if value.live or any(group not in mine for group in groups.readers_of(value)):
                written.setdefault(value.tensor.storage, Access(value.tensor, value.tensor.nbytes))
    writes = tuple(written.values())
    product = next((kernel for kernel in members if kernel.sort == "extern"), None)
    if product is not None:
        assert product.work is not None
        if len(members) == 1:
            work = product.work
            return Step(calls, work, False, work.reads, work.writes, first.segment, product.node)
        # A template reads and writes what the merged kernels did, in one launch without workspace.
        work = replace(
            product.work, kernels=1, memsets=0, memcpys=0, reads=reads, writes=writes, scratch=(), passes=()
        )
        return Step(calls, work, True, reads, writes, first.segment, product.node)
    # A generated reduction keeps its row in registers or passes over it in order: it streams like a pointwise one.
    kind: KernelKind = "foreach" if first.sort == "foreach" else "elementwise"
    flops = sum(costs.work(call).flops or 0 for call in calls if lowered.roles[call] != "extern")
    flops += sum(RANDOM_FLOPS * lowered.random.get(call, 0) for call in calls)
    flops += sum(ONLINE_SOFTMAX_FLOPS * kernel.online for kernel in members)
    launches = 1
    if first.sort == "foreach":
        arguments = len(reads) + len(writes)
        launches = -(-arguments // MOST_ARGUMENTS)
    work = Work(
        kernels=launches,
        reads=reads,
        writes=writes,
        flops=flops,
        kind=kind,
        math_dtype="float32",
        source="rule",
    )
    return Step(calls, work, True, reads, writes, first.segment)


def _outside(members: Sequence[Kernel], inside: set[int]) -> Iterator[Access]:
    """What the kernels read of others, each byte once: no more of a value than it has."""
    by_value: dict[int, dict[object, Access]] = {}
    for kernel in members:
        for read in kernel.reads.values():
            if read.value.number not in inside:
                tensor = read.access.tensor
                shown = (tensor.shape, tensor.stride, tensor.offset)
                by_value.setdefault(read.value.number, {})[shown] = read.access
    for accesses in by_value.values():
        total = sum(access.nbytes for access in accesses.values())
        most = max(access.tensor.storage_bytes or access.nbytes for access in accesses.values())
        if total <= most:
            yield from accesses.values()
        else:
            widest = max(accesses.values(), key=lambda access: access.nbytes)
            yield Access(widest.tensor, max(widest.nbytes, most))


class _Groups:
    """Kernels being merged, in a topological order that is kept up to date.

    A merge of two groups moves what lies between them in the order: what the earlier one leads to goes behind,
    what the later one needs goes before (Pearce and Kelly, 2006). Only that stretch is looked at.
    """

    def __init__(self, kernels: list[Kernel]) -> None:
        self.kernels = kernels
        self.number = {id(kernel): place for place, kernel in enumerate(kernels)}
        count = len(kernels)
        self.root = list(range(count))
        self.members: list[list[int]] = [[number] for number in range(count)]
        self.rank = list(range(count))
        self.at = list(range(count))
        self.before: list[set[int]] = [set() for _ in range(count)]
        self.behind: list[set[int]] = [set() for _ in range(count)]
        self.rows = [kernel.rows for kernel in kernels]
        self.length = [kernel.length for kernel in kernels]
        self._readers: dict[int, list[int]] = {}
        for number, kernel in enumerate(kernels):
            needed = set(kernel.after)
            for value in values_read(kernel):
                self._readers.setdefault(value.number, []).append(number)
                if value.kernel is not None and value.kernel >= 0:
                    needed.add(value.kernel)
            needed.discard(number)
            self.before[number] = needed
            for other in needed:
                self.behind[other].add(number)

    def find(self, number: int) -> int:
        while self.root[number] != number:
            self.root[number] = self.root[self.root[number]]
            number = self.root[number]
        return number

    def group_of(self, kernel: Kernel) -> int:
        return self.find(self.number[id(kernel)])

    def readers_of(self, value: Value) -> set[int]:
        return {self.find(number) for number in self._readers.get(value.number, ())}

    def ordered(self) -> Iterator[list[int]]:
        """The members of each group, groups in an order in which they can run."""
        for number in self.at:
            if self.root[number] == number:
                yield sorted(self.members[number])

    def merge(self) -> None:
        """Merge pairs that share bytes, most first, until nothing changes."""
        pairs = self._pairs()
        for _ in range(_ROUNDS):
            merged = False
            for first, second in pairs:
                merged |= self._try(first, second)
            if not merged:
                return

    def take_into_products(self) -> None:
        """Merge products with the pointwise kernel that alone reads their result, then with those that do nothing but
        make an operand (epilogue and prologue fusion of torch/_inductor/scheduler.py)."""
        products = [
            number
            for number, kernel in enumerate(self.kernels)
            if kernel.sort == "extern" and kernel.node is not None and kernel.node.facts.packet in PRODUCTS
        ]
        taken: set[int] = set()
        for number in products:
            for value in self.kernels[number].writes:
                group = self._only_reader(value)
                if group is not None and group not in taken and self._is_pointwise(group, number):
                    whole = self.rows[group] == value.tensor.numel
                    if whole and self._reads_in_place(group, value) and self._merge(number, group):
                        taken.add(self.find(number))
        for number in products:
            for value in list(values_read(self.kernels[number])):
                maker = value.kernel
                if maker is None or maker < 0:
                    continue
                group = self.find(maker)
                alone = group not in taken and len(self.members[group]) == 1
                if alone and self._is_pointwise(group, number):
                    reader = self._only_reader(value)
                    if reader == self.find(number) and len(self.kernels[maker].writes) == 1:
                        self._merge(maker, number)
                        taken.add(self.find(number))

    def _only_reader(self, value: Value) -> int | None:
        """The group that alone reads a value which nobody wants besides."""
        readers = self.readers_of(value)
        return next(iter(readers)) if len(readers) == 1 and not value.live else None

    def _is_pointwise(self, group: int, product: int) -> bool:
        """Generated, without a reduction, in the product's part of the program."""
        kernel = self.kernels[group]
        return (
            kernel.sort == "pointwise"
            and self.length[group] == 1
            and kernel.segment == self.kernels[product].segment
        )

    def _reads_in_place(self, group: int, value: Value) -> bool:
        return all(
            read.aligned
            for number in self.members[group]
            for read in self.kernels[number].reads.values()
            if read.value.number == value.number
        )

    def _pairs(self) -> list[tuple[int, int]]:
        """Kernels next to each other at some value: who makes it and who reads it, and its readers one by one."""
        shared: dict[tuple[int, int], int] = {}
        readers: dict[tuple[int, object], list[tuple[int, int]]] = {}
        for number, kernel in enumerate(self.kernels):
            if kernel.sort == "extern":
                continue
            for read in kernel.reads.values():
                value, nbytes = read.value, read.access.nbytes
                if not (read.aligned or kernel.length > 1 or value.tensor.numel in (kernel.rows, 1)):
                    continue
                maker = value.kernel
                if maker is not None and maker >= 0 and self.kernels[maker].sort != "extern":
                    shared[maker, number] = shared.get((maker, number), 0) + nbytes
                tensor = read.access.tensor
                shown = (tensor.shape, tensor.stride, tensor.offset)
                readers.setdefault((value.number, shown), []).append((number, nbytes))
        for chain in readers.values():
            for (first, one), (second, other) in itertools.pairwise(chain):
                if first != second:
                    shared[first, second] = shared.get((first, second), 0) + min(one, other)
        kept = [(pair, size) for pair, size in shared.items() if size >= FEWEST_SHARED_BYTES]
        kept.sort(key=lambda item: (-item[1], item[0][1] - item[0][0], item[0]))
        return [pair for pair, _ in kept]

    def _try(self, first: int, second: int) -> bool:
        a, b = self.find(first), self.find(second)
        if a == b or not self._agree(a, b):
            return False
        if self.rank[a] > self.rank[b]:
            a, b = b, a
        return self._aligned(a, b) and self._merge(a, b)

    def _merge(self, first: int, second: int) -> bool:
        """Make one group of two, of which the first comes earlier; False where other kernels have to run between."""
        a, b = self.find(first), self.find(second)
        # A detour is found from either side; what a group needs is mostly less than what it leads to.
        needs = self._between(b, a, self.before)
        if needs is None:
            return False
        leads_to = self._between(a, b, self.behind)
        if leads_to is None:
            return False
        self._join(a, b, needs, leads_to)
        return True

    def _agree(self, a: int, b: int) -> bool:
        """Same part of the program, same kind, loops that fit (codegen/simd.py, ``can_fuse``)."""
        one, other = self.kernels[a], self.kernels[b]
        if one.segment != other.segment or len(self.members[a]) + len(self.members[b]) > MOST_MERGED:
            return False
        if "foreach" in (one.sort, other.sort):
            return one.sort == other.sort and one.lists == other.lists
        if self.length[a] > 1 and self.length[b] > 1:
            return self.rows[a] == self.rows[b] and self.length[a] == self.length[b]
        if self.length[a] == self.length[b] == 1:
            return self.rows[a] == self.rows[b]
        sums, plain = (a, b) if self.length[a] > 1 else (b, a)
        return self.rows[plain] in (self.rows[sums] * self.length[sums], self.rows[sums])

    def _aligned(self, a: int, b: int) -> bool:
        """What the later group reads of the earlier one it reads where that one has it: element for element, or
        the sums of its rows."""
        if self.kernels[a].sort == "foreach":
            return True
        made = {value.number for number in self.members[a] for value in self.kernels[number].writes}
        rows = self.rows[a] if self.length[a] > 1 else self.rows[b] if self.length[b] > 1 else 0
        return all(
            read.aligned or read.value.tensor.numel == rows
            for number in self.members[b]
            for read in self.kernels[number].reads.values()
            if read.value.number in made
        )

    def _between(self, start: int, end: int, steps: list[set[int]]) -> list[int] | None:
        """Groups that ``start`` leads to on the way to ``end``'s place; None if it leads to ``end`` by a detour."""
        low, high = sorted((self.rank[start], self.rank[end]))
        seen = {start, end}
        stack = [n for n in steps[start] if n != end]
        found: list[int] = []
        while stack:
            group = stack.pop()
            if group in seen or not low < self.rank[group] < high:
                continue
            seen.add(group)
            found.append(group)
            if len(found) > _MOST_VISITED:
                return None
            near = steps[group]
            if end in near:
                return None
            stack.extend(near)
        return found

    def _join(self, a: int, b: int, needs: list[int], leads_to: list[int]) -> None:
        moved = [*sorted(needs, key=self.rank.__getitem__), a, *sorted(leads_to, key=self.rank.__getitem__)]
        slots = sorted([*(self.rank[group] for group in moved), self.rank[b]])
        # One slot is left over; the group that vanished keeps it.
        for group, slot in zip([*moved, b], slots, strict=True):
            self.rank[group] = slot
            self.at[slot] = group
        self.root[b] = a
        self.members[a] += self.members[b]
        self.members[b] = []
        # Neighbours are groups, so those of what vanished become those of what is left.
        for steps, back in ((self.before, self.behind), (self.behind, self.before)):
            near = steps[b] - {a}
            for group in near:
                back[group].discard(b)
                back[group].add(a)
            steps[a] |= near
            steps[a].discard(b)
            steps[b] = set()
        if self.length[b] > 1:
            self.rows[a], self.length[a] = self.rows[b], self.length[b]
        elif self.length[a] == 1:
            self.rows[a] = self.rows[b]
