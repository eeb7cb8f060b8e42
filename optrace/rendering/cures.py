"""The scoreboard of cures as data: what the terminal, the text report, the legend and ``graph.json`` show of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from optrace import units
from optrace.diagnosis.cures import Region, Row
from optrace.report import Report

#: Heads of the columns; the first is the way to run the step.
COLUMNS = ("", "launches", "HBM", "peak", "host", "device", "wall", "speed-up", "then bound by")

#: Regions that a report lists, those that save most first, and source lines told of each.
TOP_REGIONS = 10
_LINES = 3


def cure_rows(report: Report) -> list[tuple[str, ...]]:
    """A row a way to run the step, with the texts of ``COLUMNS``. All predicted."""
    return [_texts(row) for row in report.cures.rows]


def _texts(row: Row) -> tuple[str, ...]:
    def sure(text: str) -> str:
        return text if row.complete else f"{text} + {units.UNKNOWN}"

    return (
        row.name,
        sure(units.count(row.launches)),
        sure(units.moved(row.hbm_bytes)),
        units.allocated(row.peak_bytes),
        units.predicted_us(row.host_us),
        sure(units.predicted_us(row.device_us)),
        sure(units.predicted_us(row.wall_us)),
        speed_up(row),
        row.bottleneck or "nothing",
    )


def speed_up(row: Row) -> str:
    """How many times faster than eager, as predicted."""
    return f"~{row.speed_up:.2f}x"


def legend_rows(report: Report) -> Iterator[tuple[str, str, str]]:
    """Label, value and detail of each cure, for the legend of a picture."""
    if report.verdict.idle:
        return
    for row in report.cures.rows[1:]:
        name, launches, hbm, peak, host, device, wall, faster, bound = _texts(row)
        detail = f"{faster}; launches {launches}, HBM {hbm}, peak {peak}, host {host}, device {device}; then {bound}"
        yield name, wall, detail


def blocker_lines(report: Report) -> Iterator[str]:
    """What stands in the way of a CUDA graph, a line a reason with its places in the program."""
    for blocker in report.cures.blockers:
        places = blocker.lines(report.graph)
        shown = ", ".join(places[:_LINES]) + (
            f" and {len(places) - _LINES} more" if len(places) > _LINES else ""
        )
        what = "stops a CUDA graph" if blocker.stops else "mind with a CUDA graph"
        calls = units.counted(len(blocker.calls), "call")
        yield f"{what}: {blocker.reason} ({calls}{f': {shown}' if shown else ''})"


def region_rows(report: Report) -> list[tuple[str, ...]]:
    """The regions that save most device time: calls, launches, bytes and device time before and after, lines."""
    regions = sorted(report.cures.regions, key=lambda region: -(region.device_us_saved or 0.0))
    return [_region(report, region) for region in regions[:TOP_REGIONS]]


def _region(report: Report, region: Region) -> tuple[str, ...]:
    ops = [report.graph.facts(call).label for call in region.calls]
    named = " ".join(ops[:6]) + (f" ... {len(ops)} in all" if len(ops) > 6 else "")
    return (
        f"  {named}",
        f"{region.launches_before} -> {region.launches_after}",
        f"{units.moved(region.bytes_before)} -> {units.moved(region.bytes_after)}",
        f"{units.predicted_us(region.device_us_before)} -> {units.predicted_us(region.device_us_after)}",
        ", ".join(region.lines[:_LINES]),
    )


def cures_record(report: Report) -> dict[str, Any]:
    """The cures as plain data (``docs/format.md``)."""
    cures = report.cures
    return {
        "rows": [
            {
                "name": row.name,
                "launches": row.launches,
                "hbm_bytes": row.hbm_bytes,
                "peak_bytes": row.peak_bytes,
                "host_us": row.host_us,
                "device_us": row.device_us,
                "wall_us": row.wall_us,
                "speed_up": row.speed_up,
                "bottleneck": row.bottleneck,
                "complete": row.complete,
            }
            for row in cures.rows
        ],
        "blockers": [
            {
                "kind": blocker.kind,
                "reason": blocker.reason,
                "stops": blocker.stops,
                "calls": blocker.calls,
                "lines": blocker.lines(report.graph),
            }
            for blocker in cures.blockers
        ],
        "regions": [
            {
                "calls": region.calls,
                "launches_before": region.launches_before,
                "launches_after": region.launches_after,
                "bytes_before": region.bytes_before,
                "bytes_after": region.bytes_after,
                "device_us_before": region.device_us_before,
                "device_us_after": region.device_us_after,
                "lines": region.lines,
            }
            for region in cures.regions
        ],
    }


#: Outlines of regions, one after the other; they differ from the borders that bounds have.
_OUTLINES = ("#d6278a", "#6a3d9a", "#00838f", "#b15928")


def outlines(report: Report) -> dict[int, tuple[int, str]]:
    """The number of each call's region, from 1, and the colour of its outline."""
    return {
        call: (number, _OUTLINES[number % len(_OUTLINES)])
        for number, region in enumerate(report.cures.regions, 1)
        for call in region.calls
    }
