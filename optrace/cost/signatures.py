"""Which calls are alike: the same op on tensors of the same layout, laid out over storages in the same way.

A training step has a few hundred kinds of calls, a long script hardly more: what a rule says of one holds for all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optrace.graph import Columns
from optrace.graph.columns import Ints

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Signatures:
    """``of[call]`` is the call's signature; ``first[signature]`` the first call that has it. Calls of one signature
    differ in nothing that a cost rule may look at."""

    of: Ints
    first: Ints

    def __len__(self) -> int:
        return len(self.first)


def signatures(columns: Columns) -> Signatures:
    """Number the calls' signatures by first appearance.

    Calls are alike when their hashes of 64 bits are: with 100,000 signatures the chance that two fall together is
    3e-10.
    """
    tensors = mixed(columns.tensor_layout, columns.tensor_offset, storage_sizes(columns))
    keys = mixed(columns.op, columns.template, np.diff(columns.operand_start), np.diff(columns.output_start))
    starts = columns.operand_start[:-1] + columns.output_start[:-1]
    counts = np.diff(columns.operand_start) + np.diff(columns.output_start)
    rows, flags = side_by_side(columns, np.arange(columns.calls))
    for count in np.unique(counts):
        if not count:
            continue
        calls = np.flatnonzero(counts == count)
        places = starts[calls, None] + np.arange(count)
        here = rows[places]
        # In one number, of which each part has room for a million tensors.
        pattern = (np.arange(count) << 20 | first_places(here)) << 20
        pattern = (pattern | first_places(columns.tensor_storage[here])) << 2 | flags[places]
        described = mixed(tensors[here], pattern)
        keys[calls] = mixed(keys[calls], described.sum(axis=1, dtype=np.uint64))
    _, first, of = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return Signatures(number[of], first[order])


def side_by_side(columns: Columns, calls: Ints) -> tuple[Ints, Ints]:
    """Tensors of each of some calls, its operands before its outputs, and the flags of those, 0 for an output."""
    inputs = columns.operand_start[calls + 1] - columns.operand_start[calls]
    outputs = columns.output_start[calls + 1] - columns.output_start[calls]
    # Where a call's rows begin here, and which rows of the columns they are.
    starts = np.cumsum(inputs + outputs) - inputs - outputs
    rows = np.empty(int(inputs.sum() + outputs.sum()), np.int64)
    flags = np.zeros(len(rows), np.int64)
    for first, begin, counts, tensors in (
        (starts, columns.operand_start[calls], inputs, columns.operands),
        (starts + inputs, columns.output_start[calls], outputs, columns.outputs),
    ):
        place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        here, there = np.repeat(first, counts) + place, np.repeat(begin, counts) + place
        rows[here] = tensors[there]
        if tensors is columns.operands:
            flags[here] = columns.operand_flags[there]
    return rows, flags


def storage_sizes(columns: Columns) -> Ints:
    """Bytes of each tensor's storage; -1 where it has none."""
    sizes = np.append(columns.storage_bytes, -1)
    found: Ints = sizes[columns.tensor_storage]
    return found


#: Up to so many tensors a call, comparing each with each is quicker than sorting.
_FEW = 6


def first_places(rows: Ints) -> Ints:
    """For each value of each row the place in the row where it first stands."""
    count = rows.shape[1]
    found = np.tile(np.arange(count), (len(rows), 1))
    if count <= _FEW:
        for place in range(count - 1, 0, -1):
            for earlier in range(place - 1, -1, -1):
                found[rows[:, place] == rows[:, earlier], place] = earlier
        return found
    order = np.argsort(rows, axis=1, kind="stable")
    ranked = np.take_along_axis(rows, order, axis=1)
    begins = np.ones_like(ranked, dtype=np.bool_)
    begins[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    start = np.maximum.accumulate(np.where(begins, np.arange(count), 0), axis=1)
    np.put_along_axis(found, order, np.take_along_axis(order, start, axis=1), axis=1)
    return found


def mixed(*parts: NDArray[np.int64] | Hashes) -> Hashes:
    """A hash of whole numbers side by side (splitmix64, one after the other)."""
    value: Hashes = np.uint64(0x9E3779B97F4A7C15) * np.ones((), np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            value = value ^ part.astype(np.uint64)
            value = value + np.uint64(0x9E3779B97F4A7C15)
            value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            value = value ^ (value >> np.uint64(31))
    return value
