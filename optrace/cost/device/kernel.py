"""One launch as its time depends on it, and the table of what each op launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from optrace.cost.profiles import Target
from optrace.cost.work import Work
from optrace.graph import OpNode


@dataclass(frozen=True, slots=True)
class Kernel:
    """A launch that moves data: ``kind`` names its rates in the GPU's profile.

    ``nbytes`` pass through the L2. ``blocks`` thread blocks share them, each in ``steps`` rounds of loads that wait
    for one another; zero blocks where neither is known to matter. ``tail``: rounds in
    which the last block puts together what the others left. ``count`` alike run one after the other.
    """

    kind: str
    nbytes: float = 0.0
    blocks: float = 0.0
    steps: float = 0.0
    tail: float = 0.0
    count: int = 1


@dataclass(frozen=True, slots=True)
class Product:
    """A launch of matrix units, or of fused multiply-adds: ``batch`` products of ``m`` x ``k`` and ``k`` x ``n``.

    ``kind`` names its rates and tiles; ``nbytes`` pass through the L2. ``split``: parts of ``k``, at most ``most_parts``,
    are worked on side by side.
    """

    kind: str
    dtype: str
    m: float
    n: float
    k: float
    batch: float = 1
    nbytes: float = 0.0
    split: bool = False
    most_parts: int = 64

    @property
    def count(self) -> int:
        return 1


Launch = Kernel | Product
Lister = Callable[[OpNode, Work, Target], Sequence[Launch]]

#: By packet or overload, as the rules are.
LISTERS: dict[str, Lister] = {}


def launches(*names: str) -> Callable[[Lister], Lister]:
    """List what these ops launch with the decorated function. Registering an op twice raises ``ValueError``."""

    def register(function: Lister) -> Lister:
        for name in names:
            if name in LISTERS:
                raise ValueError(f"{name} is listed already: {LISTERS[name].__qualname__}")
            LISTERS[name] = function
        return function

    return register


MEMSET = Kernel("memset")
SMALL = Kernel("small")
