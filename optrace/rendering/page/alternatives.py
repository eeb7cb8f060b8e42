"""The same recorded program priced for other GPUs and L2 sizes: what a page can switch between.

Counts depend on the GPU (a reduction's split, an attention backend, what fits in L2), so nothing short of pricing
anew gives them. That takes time for each call, hence a budget; what does not fit is left out, and told.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from optrace.cost.profiles import Pricing, gpu_profiles
from optrace.report import Report
from optrace.report import report as price

#: Calls that are priced for alternatives: a few seconds.
CALL_BUDGET = 20_000

#: L2 sizes to choose from, times the GPU's own.
L2_FACTORS = (0.25, 0.5, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Further pricings of a report's graph, and what there was no time for."""

    reports: tuple[Report, ...]
    notes: tuple[str, ...]


def alternatives(report: Report, budget: int = CALL_BUDGET) -> Alternatives:
    """L2 sizes of the report's GPU first, all or none, then other GPUs, as far as ``budget`` calls go."""
    wanted = [*_l2_sizes(report.pricing), *_other_gpus(report.pricing)]
    calls = max(1, len(report.graph))
    count = budget // calls
    fitting = wanted[:count] if count >= len(L2_FACTORS) else []
    notes: tuple[str, ...] = ()
    if len(fitting) < len(wanted):
        names = (
            "other L2 sizes" if pricing.gpu.key == report.pricing.gpu.key else pricing.gpu.key
            for pricing in wanted[len(fitting) :]
        )
        left_out = ", ".join(dict.fromkeys(names))
        notes = (
            f"The page has no prices for {left_out}: pricing {calls:,} calls for each takes long. "
            "--gpu NAME makes a page for another GPU.",
        )
    return Alternatives(tuple(price(report.graph, pricing) for pricing in fitting), notes)


def _l2_sizes(pricing: Pricing) -> list[Pricing]:
    """The same GPU with a smaller or larger L2."""
    return [
        Pricing(
            msgspec.structs.replace(pricing.gpu, l2_bytes=round(pricing.gpu.l2_bytes * factor)),
            pricing.host,
            pricing.overrides,
        )
        for factor in L2_FACTORS
    ]


def _other_gpus(pricing: Pricing) -> list[Pricing]:
    return [Pricing(gpu, pricing.host) for key, gpu in gpu_profiles().items() if key != pricing.gpu.key]
