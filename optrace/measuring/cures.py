"""The cures against programs that were really captured and really compiled.

A record of cures is JSON lines, a program a line: the same step in eager, replayed from a CUDA graph, and under
``torch.compile`` with its defaults (``docs/record.md``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from optrace.cost.profiles import Pricing
from optrace.diagnosis.cuda_graph import replay_us
from optrace.diagnosis.cures import WORTH_IT
from optrace.measuring.accuracy import Pair
from optrace.measuring.record import MeasuredRun, RecordError
from optrace.report import Report, report

if TYPE_CHECKING:
    from optrace.measuring.verify import Measured  # needs torch


class MeasuredCures(msgspec.Struct, frozen=True):
    """One program's step in its forms: wall time, launches, device time and peak memory of each."""

    name: str
    eager_us: float
    eager_k: int
    eager_gpu_us: float
    eager_peak: int | None = None
    graph_us: float | None = None
    graph_peak: int | None = None
    compiled_us: float | None = None
    compiled_k: int | None = None
    compiled_gpu_us: float | None = None
    compiled_peak: int | None = None
    both_us: float | None = None


@dataclass(frozen=True, slots=True)
class CuresAccuracy:
    """``figures`` maps a name to its pairs. ``worth`` maps a cure to (program, predicted, measured): whether it
    takes at least 5 % off the wall clock; ``graph_measured_eager`` is said from eager's own measured wall clock, device time
    and launches, so that the host's speed of that hour is no part of it. ``missing``: programs that the record of runs does not have."""

    figures: Mapping[str, Sequence[Pair]]
    worth: Mapping[str, Sequence[tuple[str, bool, bool]]]
    missing: Sequence[str]

    def right(self, cure: str) -> float:
        """The share of programs for which it is rightly said whether the cure is worth it."""
        rows = self.worth[cure]
        return sum(predicted == measured for _, predicted, measured in rows) / len(rows) if rows else 1.0


def read_cures(path: Path) -> dict[str, MeasuredCures]:
    """Measured cures by program. Raises ``RecordError`` where the file is no such record."""
    found: dict[str, MeasuredCures] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = msgspec.convert(json.loads(line), type=MeasuredCures)
            except (ValueError, msgspec.ValidationError) as error:
                raise RecordError(f"{path}, line {number}: no measured cure ({error})") from None
            found[row.name] = row
    if not found:
        raise RecordError(f"{path}: no measured cure in it")
    return found


#: The ways to run a step, as fields of a record begin.
_FIELDS = {"eager": "eager", "+ CUDA graph": "graph", "+ fusion": "compiled", "+ both": "both"}


def cures_row(program: str, measured: Iterable[Measured]) -> dict[str, Any]:
    """One program's line of a record of cures; a way that failed has ``*_err`` and no figures."""
    row: dict[str, Any] = {"name": program}
    for way in measured:
        field = _FIELDS[way.name]
        if way.failed:
            row[f"{field}_err"] = way.failed
            continue
        assert way.wall_us is not None
        assert way.device_us is not None
        row[f"{field}_us"] = round(way.wall_us, 1)
        row[f"{field}_k"] = way.launches
        row[f"{field}_gpu_us"] = round(way.device_us, 1)
        row[f"{field}_peak"] = way.peak_bytes
        row[f"{field}_prepare_s"] = round(way.prepare_s, 1)
    return row


def with_row(path: Path, row: Mapping[str, Any]) -> bytes:
    """A record of cures with one more line, which replaces the program's own. Raises ``RecordError`` where the file
    is there and is no such record."""
    lines = []
    if path.exists():
        read_cures(path)
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        lines = [line for line in lines if json.loads(line)["name"] != row["name"]]
    return "".join(f"{line}\n" for line in (*lines, json.dumps(row))).encode()


def compare_cures(
    runs: Iterable[MeasuredRun],
    measured: Mapping[str, MeasuredCures],
    pricing: Pricing,
    *,
    progress: Callable[[str], None] = lambda _name: None,
) -> CuresAccuracy:
    """Price the cures of each run that has measured ones."""
    figures: dict[str, list[Pair]] = {name: [] for name in _FIGURES}
    worth: dict[str, list[tuple[str, bool, bool]]] = {"graph": [], "graph_measured_eager": [], "fusion": []}
    missing = set(measured)
    for run in runs:
        if run.name not in measured:
            continue
        progress(run.name)
        missing.discard(run.name)
        truth = measured[run.name]
        predicted = report(run.graph, pricing)
        for name, figure in _FIGURES.items():
            pair = figure(predicted, truth)
            if pair is not None:
                figures[name].append(Pair(run.name, *pair))
        cures = predicted.cures
        replayed = replay_us(truth.eager_gpu_us, truth.eager_k, pricing.gpu)
        for cure, said, us in (
            ("graph", cures.cuda_graph.worth_it, truth.graph_us),
            ("graph_measured_eager", replayed < (1.0 - WORTH_IT) * truth.eager_us, truth.graph_us),
            ("fusion", cures.fused_row.worth_it, truth.compiled_us),
        ):
            if us is not None:
                worth[cure].append((run.name, said, us < (1.0 - WORTH_IT) * truth.eager_us))
    return CuresAccuracy(
        {name: pairs for name, pairs in figures.items() if pairs},
        {name: rows for name, rows in worth.items() if rows},
        sorted(missing),
    )


_Figure = Callable[[Report, MeasuredCures], tuple[float, float] | None]


def _against(predicted: float, measured: float | None) -> tuple[float, float] | None:
    return None if measured is None else (predicted, measured)


def _graph_from_measured_kernels(predicted: Report, truth: MeasuredCures) -> tuple[float, float] | None:
    """The model of the replay alone: it is given the device time and the launches that eager really had."""
    us = replay_us(truth.eager_gpu_us, truth.eager_k, predicted.pricing.gpu)
    return _against(us, truth.graph_us)


def _difference(predicted: int, measured: int | None, eager: int | None) -> tuple[float, float] | None:
    """How much the cure changes peak memory: levels hold what the measuring process keeps besides. None where it
    changes less than a megabyte, which no share of is worth telling."""
    if measured is None or eager is None or abs(measured - eager) < _LEAST_BYTES:
        return None
    return predicted, measured - eager


_LEAST_BYTES = 1 << 20


def _graph_peak(predicted: Report, truth: MeasuredCures) -> tuple[float, float] | None:
    cures = predicted.cures
    change = cures.cuda_graph.peak_bytes - cures.eager.peak_bytes
    return _difference(change, truth.graph_peak, truth.eager_peak)


def _compiled_peak(predicted: Report, truth: MeasuredCures) -> tuple[float, float] | None:
    cures = predicted.cures
    change = cures.fused_row.peak_bytes - cures.eager.peak_bytes
    return _difference(change, truth.compiled_peak, truth.eager_peak)


#: Figures of a program: predicted and measured, or None where the record has none.
_FIGURES: dict[str, _Figure] = {
    "graph_us": lambda predicted, truth: _against(predicted.cures.cuda_graph.wall_us, truth.graph_us),
    "graph_us_measured_kernels": _graph_from_measured_kernels,
    "compiled_us": lambda predicted, truth: _against(predicted.cures.fused_row.wall_us, truth.compiled_us),
    "compiled_gpu_us": lambda predicted, truth: _against(
        predicted.cures.fused_row.device_us, truth.compiled_gpu_us
    ),
    "compiled_k": lambda predicted, truth: _against(predicted.cures.fused_row.launches, truth.compiled_k),
    "both_us": lambda predicted, truth: _against(predicted.cures.both.wall_us, truth.both_us),
    "graph_peak": _graph_peak,
    "compiled_peak": _compiled_peak,
}
