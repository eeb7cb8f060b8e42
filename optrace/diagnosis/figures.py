"""The figures that keep score, of a whole run or of some of its calls: what runs are compared and gated by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from optrace.cost.pricing import OpCost
from optrace.diagnosis.run import Run

#: Figures that are sums over calls: what one call adds, None where that is not known.
SUMS: Mapping[str, Callable[[OpCost], float | None]] = {
    "launches": lambda cost: cost.launches,
    "hbm_bytes": lambda cost: cost.hbm_bytes,
    "flops": lambda cost: cost.work.flops,
    "syncs": lambda cost: int(cost.work.host_wait),
    "host_us": lambda cost: cost.host.total_us,
    "device_us": lambda cost: cost.device_us,
}

#: Times come from a profile and say what a GPU would take; the others are the same on every machine.
TIMES = ("host_us", "device_us", "wall_us")
COUNTS = ("launches", "hbm_bytes", "peak_bytes", "flops", "syncs")


@dataclass(frozen=True, slots=True)
class Figures:
    """Sums over calls, with the number of calls that a sum leaves out (``unknown``, by name).

    ``peak_bytes`` is the most memory that was allocated during the calls, ``wall_us`` their part of the wall clock
    (of a whole run: all of it), ``syncs`` the calls that the host waits for.
    """

    launches: float = 0
    hbm_bytes: float = 0
    peak_bytes: float = 0
    flops: float = 0
    syncs: float = 0
    host_us: float = 0.0
    device_us: float = 0.0
    wall_us: float = 0.0
    unknown: Mapping[str, int] = field(default_factory=dict)

    def value(self, name: str) -> float:
        """A figure by its name in ``COUNTS`` or ``TIMES``."""
        amount: float = getattr(self, name)
        return amount


def figures_of(run: Run) -> Figures:
    """The figures of a whole run."""
    summed, unknown = _sums(run.priced.costs)
    return Figures(**summed, peak_bytes=run.priced.memory.peak, wall_us=run.timeline.wall_us, unknown=unknown)


def figures_of_calls(run: Run, calls: Iterable[int]) -> Figures:
    """The figures of some calls of a run."""
    chosen = list(calls)
    summed, unknown = _sums(run.priced.costs[call] for call in chosen)
    live = run.priced.memory.live_after
    return Figures(
        **summed,
        peak_bytes=max((live[call] for call in chosen), default=0),
        wall_us=sum(run.timeline.spans[call].wall_us for call in chosen),
        unknown=unknown,
    )


def _sums(costs: Iterable[OpCost]) -> tuple[dict[str, float], dict[str, int]]:
    summed: dict[str, float] = dict.fromkeys(SUMS, 0)
    unknown: dict[str, int] = {}
    for cost in costs:
        for name, figure in SUMS.items():
            amount = figure(cost)
            if amount is None:
                unknown[name] = unknown.get(name, 0) + 1
            else:
                summed[name] += amount
    return summed, unknown
