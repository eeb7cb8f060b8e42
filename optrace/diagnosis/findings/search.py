"""All rules over a run: occurrences grouped by place, weighed by wall time, the largest first."""

from __future__ import annotations

from collections.abc import Sequence

from optrace.diagnosis.findings import rules as _rules  # noqa: F401 - fills the table
from optrace.diagnosis.findings.finding import SEVERITIES, Finding, Hit, Severity
from optrace.diagnosis.findings.scene import Scene
from optrace.diagnosis.findings.table import KINDS, Kind
from optrace.diagnosis.run import Run
from optrace.timeline import Task, wall_us_with

#: Replays of the whole run that claims may take: so many calls in all, and at least so many findings.
_REPLAYED_CALLS = 1_000_000
_REPLAYED_FINDINGS = 8


def find(run: Run) -> tuple[Finding, ...]:
    """What is worth changing, by the wall time that it is about.

    A claim is the replay of the run with and without the change. In a very long run only the findings that take most
    of the wall clock are replayed; the others claim nothing.
    """
    scene = Scene(run)
    groups: list[tuple[Kind, list[Hit]]] = []
    for kind in KINDS.values():
        places: dict[object, list[Hit]] = {}
        for hit in kind.rule(scene):
            place = scene.place(hit.calls[0])
            where = hit.line or place.line or place.module
            places.setdefault((where, hit.change), []).append(hit)
        groups += [(kind, hits) for hits in places.values()]
    groups.sort(key=lambda group: -_wall_us(scene, _calls(group[1])))
    replays = max(_REPLAYED_FINDINGS, _REPLAYED_CALLS // max(1, len(scene)))
    found = [
        _finding(scene, kind, hits, replay=number < replays) for number, (kind, hits) in enumerate(groups)
    ]
    return tuple(sorted(found, key=lambda finding: (-_weight(finding), finding.leads)))


def _calls(hits: Sequence[Hit]) -> list[int]:
    return sorted({call for hit in hits for call in hit.calls})


def _wall_us(scene: Scene, calls: Sequence[int]) -> float:
    return sum([scene.wall_us[call] for call in calls])


def _finding(scene: Scene, kind: Kind, hits: Sequence[Hit], *, replay: bool) -> Finding:
    calls = _calls(hits)
    instead: dict[int, Task | None] = {}
    for hit in hits:
        instead.update(hit.instead or {})
    saves = None
    if instead and replay:
        saves = max(0.0, scene.run.timeline.wall_us - wall_us_with(scene.run.priced, instead))
    wall_us = _wall_us(scene, calls)
    return Finding(
        kind=kind.name,
        title=kind.title,
        severity=_severity(saves if saves is not None else wall_us, scene.run.timeline.wall_us),
        module=_shared_module([scene.module(hit.calls[0]) for hit in hits]),
        source=hits[0].line or scene.place(hits[0].calls[0]).line,
        why=hits[0].why,
        change=hits[0].change,
        leads=tuple(hit.calls[0] for hit in hits),
        calls=tuple(calls),
        wall_us=wall_us,
        saves_us=saves,
    )


def _shared_module(paths: Sequence[str]) -> str:
    """What the modules of all occurrences have in common: ``GPT.blocks.*`` and what differs below it as ``**``; empty
    where it is nothing."""
    distinct = [path.split(".") for path in dict.fromkeys(paths)]
    if len(distinct) == 1:
        return paths[0]
    shared = []
    for parts in zip(*distinct, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join((*shared, "**")) if shared else ""


def _weight(finding: Finding) -> float:
    return finding.wall_us if finding.saves_us is None else finding.saves_us


def _severity(us: float, wall_us: float) -> Severity:
    share = us / wall_us if wall_us else 0.0
    return next(severity for severity, least in SEVERITIES if share >= least)
