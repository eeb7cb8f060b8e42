"""What a diagnosis looks at: a priced graph and its replay."""

from __future__ import annotations

from typing import Protocol

from optrace.cost.pricing import PricedGraph
from optrace.timeline import Timeline


class Run(Protocol):
    """A ``Report``, as far as the stages below it need it."""

    @property
    def priced(self) -> PricedGraph: ...

    @property
    def timeline(self) -> Timeline: ...
