"""What is alive when most device memory is allocated, by what it is for and by who made it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from optrace.cost.memory import MemoryUse
from optrace.graph import OpGraph
from optrace.graph.columns import Ints
from optrace.graph.nouns import PHASES

Use = Literal[
    "parameters",
    "buffers",
    "gradients",
    "optimizer state",
    "inputs",
    "activations",
    "temporaries",
    "workspace",
]

#: In the order in which they are shown. ``inputs``: whatever else stood before the first call (batches, caches);
#: ``activations``: made by the forward pass and read by the backward pass; ``temporaries``: all else that
#: the run made; ``workspace``: what libraries keep, and what the call at the peak allocates within itself.
USES: tuple[Use, ...] = (
    "parameters",
    "buffers",
    "gradients",
    "optimizer state",
    "inputs",
    "activations",
    "temporaries",
    "workspace",
)

_OF_KIND: dict[str, Use] = {
    "parameter": "parameters",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer state": "optimizer state",
}


@dataclass(frozen=True, slots=True)
class Holding:
    """A storage that is alive at the peak.

    ``nbytes`` is its allocated block's; ``born`` the call that made it (None: it stood before the first one),
    ``freed`` the call after which it was gone (None: it outlives the run's last call).
    """

    storage: int
    nbytes: int
    use: Use
    born: int | None
    freed: int | None


@dataclass(frozen=True, slots=True)
class Peak:
    """A moment of much allocated memory. The bytes of ``shares`` add up to what is allocated; ``holdings`` are the
    storages alive then, largest first (workspaces are no storages)."""

    shares: dict[Use, int]
    holdings: tuple[Holding, ...]


def peak_of(graph: OpGraph, memory: MemoryUse) -> Peak:
    """Take the peak of ``memory`` apart."""
    return alive_at(graph, memory, memory.peak_call, memory.peak)


def alive_at(graph: OpGraph, memory: MemoryUse, moment: int, allocated: int) -> Peak:
    """Take apart the ``allocated`` bytes of the call ``moment``."""
    columns = graph.columns()
    freed = np.full(len(graph.storages), len(graph))
    # A storage that outlives the last call and one that goes with it are the same to a peak.
    gone = columns.freed_after < len(graph) - 1
    freed[columns.freed_storage[gone]] = columns.freed_after[gone]
    alive = np.flatnonzero((memory.address >= 0) & (memory.born <= moment) & (freed >= moment)).tolist()
    uses = uses_of(graph, alive, memory.born)
    holdings = [
        Holding(
            storage,
            int(memory.block_bytes[storage]),
            uses[storage],
            born if (born := int(memory.born[storage])) >= 0 else None,
            end if (end := int(freed[storage])) < len(graph) else None,
        )
        for storage in alive
    ]
    shares = dict.fromkeys(USES, 0)
    for holding in holdings:
        shares[holding.use] += holding.nbytes
    shares["workspace"] = allocated - sum(holding.nbytes for holding in holdings)
    return Peak(
        {use: nbytes for use, nbytes in shares.items() if nbytes},
        tuple(sorted(holdings, key=lambda holding: (-holding.nbytes, holding.storage))),
    )


def uses_of(graph: OpGraph, storages: Iterable[int], born: Ints) -> dict[int, Use]:
    """What each storage is for: as the tracer named it, else by the phases that made it and read it. ``born``: the
    call that made a storage, -1 for none.

    A gradient that is gone at the end of the run has no name: the backward pass made it and the optimizer read it.
    """
    columns = graph.columns()
    phases = np.repeat(columns.phase, np.diff(columns.operand_start))
    read = columns.tensor_storage[columns.operands]
    read_in_backward = set(read[phases == PHASES.index("backward")].tolist())
    read_by_optimizer = set(read[phases == PHASES.index("optimizer")].tolist())

    def use_of(storage: int) -> Use:
        known = _OF_KIND.get(graph.storages[storage].kind)
        if known is not None:
            return known
        if born[storage] < 0:
            return "inputs"
        phase = graph.phase(int(born[storage]))
        if phase == "backward" and storage in read_by_optimizer:
            return "gradients"
        if phase in ("forward", "other") and storage in read_in_backward:
            return "activations"
        return "temporaries"

    return {storage: use_of(storage) for storage in storages}
