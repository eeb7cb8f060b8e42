"""Who must run before whom: by tensor identity, and through storage by byte range.

Identity gives the edge from the call that made a tensor object, a view included. Storage gives the rest:
a read follows every later write of its bytes through an alias, and a write follows every read and write
of the bytes that it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from optrace.graph.opgraph import READS, WRITES, Edge
from optrace.graph.regions import Region, region_of

if TYPE_CHECKING:
    from optrace.graph.opgraph import OpGraph

_BUCKETS = 256


class _Accesses:
    """Calls and the regions of one storage that they touched, found again by byte range.

    Kept in buckets of the storage's range, so that a thousand slices written one by one do not each look
    through all the others.
    """

    __slots__ = ("_buckets", "_shift", "_wide")

    def __init__(self, nbytes: int) -> None:
        self._shift = max(0, (max(1, nbytes) // _BUCKETS).bit_length())
        self._buckets: dict[int, list[tuple[int, Region]]] = {}
        self._wide: list[tuple[int, Region]] = []

    def _span(self, region: Region) -> range:
        return range(region.start >> self._shift, ((region.end - 1) >> self._shift) + 1)

    def add(self, call: int, region: Region) -> None:
        span = self._span(region)
        if len(span) > 8:
            self._wide.append((call, region))
        else:
            for bucket in span:
                self._buckets.setdefault(bucket, []).append((call, region))

    def overlapping(self, region: Region) -> Iterator[int]:
        for call, other in self._wide:
            if other.overlaps(region):
                yield call
        if not self._buckets:
            return
        span = self._span(region)
        keys: Iterable[int] = span if len(span) < len(self._buckets) else tuple(self._buckets)
        for key in keys:
            for call, other in self._buckets.get(key, ()):
                if other.overlaps(region):
                    yield call

    def forget(self, region: Region) -> None:
        """Drop what lies wholly inside ``region``."""
        self._wide = [item for item in self._wide if not region.covers(item[1])]
        if not self._buckets:
            return
        span = self._span(region)
        keys = list(span) if len(span) < len(self._buckets) else [k for k in self._buckets if k in span]
        for key in keys:
            if key in self._buckets:
                kept = [item for item in self._buckets[key] if not region.covers(item[1])]
                if kept:
                    self._buckets[key] = kept
                else:
                    del self._buckets[key]


class _History:
    """The last writes of a storage's bytes and the reads since."""

    __slots__ = ("reads", "writes")

    def __init__(self, nbytes: int) -> None:
        self.writes = _Accesses(nbytes)
        self.reads = _Accesses(nbytes)


def dependences(graph: OpGraph) -> list[Edge]:
    """Every dependence of the graph, without repeats, grouped by the later call."""
    rewritten = _rewritten_storages(graph)
    histories: dict[int, _History] = {}
    regions: dict[tuple[int, int], Region | None] = {}
    producer: dict[int, int] = {}
    creator: dict[int, int] = {}
    edges: list[Edge] = []

    def region(tensor: int) -> Region | None:
        key = (graph.tensor_layout(tensor), graph.tensor_offset(tensor))
        if key not in regions:
            regions[key] = region_of(graph.tensor(tensor))
        return regions[key]

    def history(storage: int) -> _History:
        if storage not in histories:
            histories[storage] = _History(graph.storages[storage].nbytes)
        return histories[storage]

    for call in range(len(graph)):
        operands, flags = graph.operands(call), graph.operand_flags(call)
        outputs = graph.outputs(call)
        is_view = graph.is_view(call)
        seen: set[int] = set()
        for tensor, flag in zip(operands, flags, strict=True):
            storage = graph.tensor_storage(tensor)
            made_by = producer.get(tensor)
            if storage not in rewritten:
                if made_by is None:
                    made_by = creator.get(storage)
                if made_by is not None:
                    edges.append(Edge(made_by, call, tensor, "data"))
                    seen.add(made_by)
                continue
            before = {made_by} if made_by is not None else set()
            hazards: set[int] = set()
            if storage >= 0:
                past = history(storage)
                # A view touches what it shows, any other call what it is given. What was written before the
                # tensor object was made is reached through the call that made it.
                for shown in outputs if is_view else (tensor,):
                    touched = region(shown)
                    if touched is None or graph.tensor_storage(shown) != storage:
                        continue
                    writers = past.writes.overlapping(touched)
                    before.update(w for w in writers if made_by is None or w > made_by)
                    if flag & WRITES:
                        hazards.update(past.reads.overlapping(touched))
            # Each operand is an edge of its own: x + x has two.
            edges.extend(Edge(src, call, tensor, "data") for src in sorted(before))
            seen |= before
            edges.extend(Edge(src, call, tensor, "order") for src in sorted(hazards - seen - {call}))
            seen |= hazards
        for tensor, flag in zip(operands, flags, strict=True):
            storage = graph.tensor_storage(tensor)
            if storage not in rewritten or storage < 0:
                continue
            touched = region(tensor)
            if touched is None:
                continue
            if flag & WRITES:
                past = history(storage)
                past.writes.forget(touched)
                past.reads.forget(touched)
                past.writes.add(call, touched)
            elif flag & READS and not is_view:
                history(storage).reads.add(call, touched)
        for tensor, flag in zip(operands, flags, strict=True):
            if flag & WRITES:
                producer[tensor] = call
        known = {graph.tensor_storage(tensor) for tensor in operands}
        for tensor in outputs:
            producer[tensor] = call
            storage = graph.tensor_storage(tensor)
            if storage >= 0 and storage not in known and storage not in creator:
                creator[storage] = call
                touched = region(tensor)
                if storage in rewritten and touched is not None:
                    history(storage).writes.add(call, touched)
    return edges


def _rewritten_storages(graph: OpGraph) -> set[int]:
    """Storages that some call writes through an argument; all others are written once, by their creator."""
    return {
        graph.tensor_storage(tensor)
        for call in range(len(graph))
        for tensor, flag in zip(graph.operands(call), graph.operand_flags(call), strict=True)
        if flag & WRITES
    }
