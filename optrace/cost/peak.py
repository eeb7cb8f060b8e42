"""What is alive when most device memory is allocated, by what it is for and by who made it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from optrace.cost.memory import MemoryUse
from optrace.graph import OpGraph

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
    """The moment of most allocated memory. The bytes of ``shares`` add up to the peak; ``holdings`` are the
    storages alive at it, largest first (workspaces are no storages)."""

    shares: dict[Use, int]
    holdings: tuple[Holding, ...]


def peak_of(graph: OpGraph, memory: MemoryUse) -> Peak:
    """Take the peak of ``memory`` apart."""
    born = {storage: call for call, storages in memory.created.items() for storage in storages}
    freed = {
        storage: call for call in range(-1, len(graph) - 1) for storage in graph.freed_after(call)
    }  # fmt: skip
    moment = memory.peak_call
    alive = [
        storage
        for storage in memory.addresses
        if born.get(storage, -1) <= moment and freed.get(storage, len(graph)) >= moment
    ]
    uses = uses_of(graph, alive, born)
    holdings = [
        Holding(storage, memory.block_bytes[storage], uses[storage], born.get(storage), freed.get(storage))
        for storage in alive
    ]
    shares = dict.fromkeys(USES, 0)
    for holding in holdings:
        shares[holding.use] += holding.nbytes
    shares["workspace"] = memory.peak - sum(holding.nbytes for holding in holdings)
    return Peak(
        {use: nbytes for use, nbytes in shares.items() if nbytes},
        tuple(sorted(holdings, key=lambda holding: (-holding.nbytes, holding.storage))),
    )


def uses_of(graph: OpGraph, storages: Iterable[int], born: dict[int, int]) -> dict[int, Use]:
    """What each storage is for: as the tracer named it, else by the phases that made it and read it.

    A gradient that is gone at the end of the run has no name: the backward pass made it and the optimizer read it.
    """
    read_in_backward: set[int] = set()
    read_by_optimizer: set[int] = set()
    for call in range(len(graph)):
        phase = graph.phase(call)
        if phase in ("backward", "optimizer"):
            seen = read_in_backward if phase == "backward" else read_by_optimizer
            seen.update(graph.tensor_storage(tensor) for tensor in graph.operands(call))

    def use_of(storage: int) -> Use:
        known = _OF_KIND.get(graph.storages[storage].kind)
        if known is not None:
            return known
        if storage not in born:
            return "inputs"
        phase = graph.phase(born[storage])
        if phase == "backward" and storage in read_by_optimizer:
            return "gradients"
        if phase in ("forward", "other") and storage in read_in_backward:
            return "activations"
        return "temporaries"

    return {storage: use_of(storage) for storage in storages}
