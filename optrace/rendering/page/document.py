"""A report as the page's data: one JSON header that speaks of columns of numbers.

Sections that a report has nothing for are left out, and the page does not show them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from optrace.cost.work import MATRIX_KINDS
from optrace.diagnosis import BOUNDS
from optrace.diagnosis.findings import Finding
from optrace.rendering import findings as words
from optrace.rendering.options import DrawOptions
from optrace.rendering.page.alternatives import CALL_BUDGET, alternatives
from optrace.rendering.page.columns import Packer
from optrace.rendering.page.prices import KINDS, SOURCES, prices
from optrace.rendering.page.structure import structure
from optrace.rendering.palette import PAINT
from optrace.rendering.scoreboard import missing_figures, provenance, scoreboard_rows, verdict_line
from optrace.rendering.validation import SHADES, Validation
from optrace.report import Report


def document(report: Report, options: DrawOptions) -> tuple[bytes, tuple[str, ...]]:
    """The packed data of a page, and what its maker should be told."""
    pack = Packer()
    batches = options.batches or ((None, report),)
    notes: list[str] = []
    runs = []
    for batch, run in batches:
        others = alternatives(run, CALL_BUDGET // len(batches))
        notes += [note for note in others.notes if note not in notes]
        runs.append(_run(batch, run, others.reports, pack))
    if options.measured:
        runs[0]["measured"] = _measured(options.measured, pack)
    info = report.graph.info
    header = {
        "format": "optrace.page",
        "program": info.program,
        "mode": info.mode,
        "torch": info.torch or "of unknown version",
        "steps": info.steps,
        "paint": {bound: asdict(PAINT[bound]) for bound in BOUNDS},
        "bounds": BOUNDS,
        "kinds": KINDS,
        "costSources": SOURCES,
        **({"shades": _SHADES} if options.measured else {}),
        "runs": runs,
        "notes": [*provenance(report), report.pricing.gpu.note, *info.notes, *notes],
    }
    return pack.pack(header), tuple(notes)


def _run(batch: int | None, report: Report, others: tuple[Report, ...], pack: Packer) -> dict[str, Any]:
    """One recorded program with all its pricings, its own first."""
    block = _block(report)
    return {
        "batch": batch,
        "structure": structure(report, pack),
        "pricings": [
            prices(report, pack, fused=True),
            *(prices(other, pack, fused=False) for other in others),
        ],
        "verdict": verdict_line(report),
        "scoreboard": [asdict(row) for row in scoreboard_rows(report)],
        "missing": missing_figures(report),
        **({"block": block} if block else {}),
        "findings": [_finding(finding, pack) for finding in report.findings],
        **_cures(report, pack),
    }


#: JSON has no infinity.
_SHADES = [asdict(shade) | {"most": shade.most if math.isfinite(shade.most) else None} for shade in SHADES]


def _measured(view: Validation, pack: Packer) -> Mapping[str, Any]:
    return {"device": view.device, "callUs": pack.add("Float64", view.call_us), "wallUs": view.wall_us}


def _finding(finding: Finding, pack: Packer) -> Mapping[str, Any]:
    return {
        "title": words.title(finding),
        "severity": finding.severity,
        "place": words.place(finding),
        "why": words.sentence(finding.why),
        "change": words.sentence(finding.change),
        "claim": words.claim(finding),
        "calls": pack.add("Uint32", finding.calls),
    }


def _cures(report: Report, pack: Packer) -> Mapping[str, Any]:
    """What each cure makes of the run as traced, what stops a capture, and what would be fused, most saved first."""
    if report.verdict.idle:
        return {}
    cures = report.cures
    regions = sorted(cures.regions, key=lambda region: -(region.device_us_saved or 0.0))
    return {
        "cures": [
            {
                "name": row.name,
                "wallUs": row.wall_us,
                "speedUp": row.speed_up,
                "launches": row.launches,
                "hbmBytes": row.hbm_bytes,
                "peakBytes": row.peak_bytes,
                "bottleneck": row.bottleneck or "",
                "complete": row.complete,
            }
            for row in cures.rows
        ],
        "blockers": [
            {"reason": one.reason, "stops": one.stops, "calls": pack.add("Uint32", one.calls)}
            for one in cures.blockers
        ],
        "regions": [
            {
                "calls": pack.add("Uint32", region.calls),
                "launchesSaved": region.launches_saved,
                "bytesBefore": region.bytes_before,
                "bytesAfter": region.bytes_after,
                "savedUs": region.device_us_saved,
            }
            for region in regions[:_REGIONS]
        ],
        "regionsInAll": len(regions),
    }


#: Regions that are listed; the fused schedule holds them all.
_REGIONS = 200


def _block(report: Report) -> Mapping[str, Any] | None:
    """One product and a chain of elementwise ops over tensors of one size, if that is all the program launches:
    then the page can vary the size and the length of the chain, as the plain sum does on paper."""
    launching = np.flatnonzero(report.costs.launches > 0).tolist()
    if len(launching) < 2:
        return None
    kinds = [report.costs.work(call).kind for call in launching]
    sizes = {
        report.graph.tensor(report.graph.outputs(call)[0]).numel
        for call in launching
        if report.graph.outputs(call)
    }
    if kinds[0] not in MATRIX_KINDS or set(kinds[1:]) != {"elementwise"} or len(sizes) != 1:
        return None
    return {"elements": sizes.pop(), "product": launching[0], "chain": launching[1:]}
