"""Rates of kernels from timed launches, kind by kind: least squares on the logarithm of time, with the model's own formulas.

A kind starts from the rates that are known, all scaled by how much slower or faster its launches were; each rate is then
held back a little from leaving that, so that few launches change few rates. A launch far off counts with its distance, not
the square of it (soft L1).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from optrace.cost.device.kernel import Launch
from optrace.cost.device.rates import Rates
from optrace.cost.profiles import GpuProfile, KernelRates, ProductRates

#: Fewer different launches than this leave a kind as it was, unless the same were timed often enough.
FEWEST, ENOUGH = 3, 8

#: Distances up to this count with their square.
_NEAR = 0.15
#: What it costs a rate to leave its start by a factor of e, as the distance of one launch.
_HELD_BACK = 0.12
_LEAST, _MOST = 1e-7, 1e4
_STEPS = 25
_DERIVATIVE = 1e-3
#: Like launches count up to this often.
_MOST_ALIKE = 4
#: Digits of a rate in a profile.
_DIGITS = 3

Vector: TypeAlias = npt.NDArray[np.float64]
R = TypeVar("R", KernelRates, ProductRates)


@dataclass(frozen=True, slots=True)
class TimedLaunch:
    """A launch, its bytes that crossed HBM, and the microseconds it took."""

    launch: Launch
    hbm_bytes: float
    us: float


@dataclass(frozen=True, slots=True)
class KindFit:
    """A kind of kernel: different launches that were timed, and the median distance of the model from them (0.1 is 10 %)
    with the rates known before, and with these."""

    launches: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Fitted:
    """The profile with new rates, and how well they do, for each kind that was fitted."""

    gpu: GpuProfile
    kinds: Mapping[str, KindFit]


def fit_rates(gpu: GpuProfile, timed: Sequence[TimedLaunch], *, seconds: float = math.inf) -> Fitted:
    """Fit every kind of which there are launches enough; ``gpu`` has rates to start from. Kinds that the ``seconds``
    did not suffice for keep theirs. Those with most launches come first."""
    end = time.monotonic() + seconds
    by_kind: dict[str, list[TimedLaunch]] = {}
    for row in timed:
        if row.us > 0:
            by_kind.setdefault(row.launch.kind, []).append(row)
    kernels, products = dict(gpu.kernels), dict(gpu.products)
    found: dict[str, KindFit] = {}
    for kind, rows in sorted(by_kind.items(), key=lambda item: -len(item[1])):
        alike, weights = _merged(rows)
        known = len(alike) >= FEWEST or len(rows) >= ENOUGH
        if not known or time.monotonic() > end:
            continue
        if kind in kernels:
            kernels[kind], found[kind] = _Kind(gpu, kind, kernels[kind], alike, weights).fitted()
        elif kind in products:
            products[kind], found[kind] = _Kind(gpu, kind, products[kind], alike, weights).fitted()
    return Fitted(msgspec.structs.replace(gpu, kernels=kernels, products=products), found)


def _merged(rows: Sequence[TimedLaunch]) -> tuple[list[TimedLaunch], Vector]:
    """Launches alike as one with their median time; and how much each counts."""
    alike: dict[tuple[Launch, float], list[TimedLaunch]] = {}
    for row in rows:
        share = round(row.hbm_bytes / row.launch.nbytes, 1) if row.launch.nbytes else 0.0
        alike.setdefault((row.launch, share), []).append(row)
    merged = [
        TimedLaunch(
            launch,
            float(np.mean([row.hbm_bytes for row in group])),
            float(np.median([row.us for row in group])),
        )
        for (launch, _), group in alike.items()
    ]
    return merged, np.sqrt([min(len(group), _MOST_ALIKE) for group in alike.values()])


class _Kind(Generic[R]):
    """One kind of launch being fitted: its rates as a vector of logarithms."""

    def __init__(
        self,
        gpu: GpuProfile,
        kind: str,
        rates: R,
        rows: Sequence[TimedLaunch],
        weights: Vector,
    ) -> None:
        self._gpu = gpu
        self._kind = kind
        self._rates: R = rates
        self._rows = rows
        self._weights = weights
        self._fields = [
            field.name
            for field in msgspec.structs.fields(rates)
            # What a kind is known to be free of it stays free of.
            if isinstance(value := getattr(rates, field.name), float) and value > 0
        ]
        self._measured = np.log([row.us for row in rows])

    def fitted(self) -> tuple[R, KindFit]:
        known = self._vector()
        before = self._distances(np.log(known))
        slower = float(np.exp(-np.median(before)))
        # From the known rates, and from those of a kind that is slower or faster as a whole; the better counts.
        ends = [self._descend(np.log(self._start(known, scale))) for scale in (1.0, slower)]
        best = min(ends, key=lambda end: self._cost(self._distances(end), np.zeros_like(end)))
        after = self._distances(best)
        rates = {
            name: 0.0 if value <= _LEAST else float(f"{value:.{_DIGITS}g}")
            for name, value in zip(self._fields, np.exp(best), strict=True)
        }
        return msgspec.structs.replace(self._rates, **rates), KindFit(
            len(self._rows), float(np.median(np.abs(before))), float(np.median(np.abs(after)))
        )

    def _vector(self) -> Vector:
        return np.array([float(getattr(self._rates, name)) for name in self._fields])

    def _start(self, known: Vector, slower: float) -> Vector:
        """The known rates for launches that take ``slower`` times as long."""
        scaled = np.array(
            [
                value / slower if name == "math" else value * slower
                for name, value in zip(self._fields, known, strict=True)
            ]
        )
        clipped: Vector = np.clip(scaled, _LEAST, _MOST)
        return clipped

    def _predict(self, values: Vector) -> Vector:
        """Microseconds of each launch, by the model itself."""
        fields = dict(zip(self._fields, map(float, values), strict=True))
        trial = msgspec.structs.replace(self._rates, **fields)
        one = {self._kind: trial}
        changed = {"products": one} if isinstance(trial, ProductRates) else {"kernels": one}
        model = Rates(msgspec.structs.replace(self._gpu, **changed))
        times = (max(model.launch_us(row.launch, row.hbm_bytes)[0], 1e-3) for row in self._rows)
        return np.fromiter(times, dtype=np.float64)

    def _distances(self, logs: Vector) -> Vector:
        distances: Vector = np.log(self._predict(np.exp(logs))) - self._measured
        return distances

    def _descend(self, start: Vector) -> Vector:
        """Levenberg and Marquardt's descent, reweighted for soft L1 (Triggs et al. 2000)."""
        here, distances = start, self._distances(start)
        cost = self._cost(distances, here - start)
        damping = 1e-2
        for _ in range(_STEPS):
            slopes = np.empty((len(distances), len(here)))
            for place in range(len(here)):
                moved = here.copy()
                moved[place] += _DERIVATIVE
                slopes[:, place] = (self._distances(moved) - distances) / _DERIVATIVE
            weights = self._weights / (1 + (distances / _NEAR) ** 2) ** 0.25
            weighted, wanted = slopes * weights[:, None], distances * weights
            held = _HELD_BACK**2
            curvature = weighted.T @ weighted + held * np.eye(len(here))
            gradient = weighted.T @ wanted + held * (here - start)
            improved = False
            while damping < 1e6 and not improved:
                step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), gradient)
                there = np.clip(here - np.clip(step, -2.0, 2.0), math.log(_LEAST), math.log(_MOST))
                moved_distances = self._distances(there)
                moved_cost = self._cost(moved_distances, there - start)
                improved = moved_cost < cost
                damping = max(damping / 5, 1e-9) if improved else damping * 4
            if not improved:
                break
            done = cost - moved_cost < 1e-5 * cost
            here, distances, cost = there, moved_distances, moved_cost
            if done:
                break
        return here

    def _cost(self, distances: Vector, left: Vector) -> float:
        soft = 2 * _NEAR**2 * (np.sqrt(1 + (distances / _NEAR) ** 2) - 1)
        return float(np.sum(self._weights**2 * soft) + _HELD_BACK**2 * np.sum(left**2))
