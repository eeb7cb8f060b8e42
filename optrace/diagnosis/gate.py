"""A run held against its budget, and the baseline that budgets refer to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import msgspec

from optrace.cost.peak import Holding, alive_at, peak_of
from optrace.diagnosis.budget import BudgetError, Limit, fits
from optrace.diagnosis.compare import folded
from optrace.diagnosis.figures import SUMS, Figures, figures_of, figures_of_calls
from optrace.diagnosis.findings import Finding
from optrace.diagnosis.run import Run
from optrace.graph import Frame, OpGraph

_FORMAT = "optrace.baseline"
#: Culprits that are told for a limit.
_MOST = 5
#: Modules that are told beside one that does not exist.
_NEAR = 3


class OpRow(msgspec.Struct, frozen=True):
    """All calls of an op in the modules of one folded path together."""

    op: str
    module: str
    phase: str
    calls: int
    launches: float
    hbm_bytes: float
    flops: float
    syncs: float


class Stored(msgspec.Struct, frozen=True):
    """What a baseline holds of one program: ``values`` by the name of the limit, and its ops."""

    values: dict[str, float]
    ops: list[OpRow]
    gpu: str = ""
    torch: str = ""


class Baseline(msgspec.Struct, frozen=True):
    """A baseline file: programs by the name that they are checked under."""

    format: str = _FORMAT
    version: int = 1
    programs: dict[str, Stored] = {}


@dataclass(frozen=True, slots=True)
class Culprit:
    """Calls that add to a figure: ``amount`` in all, or ``amount`` more than the baseline where ``grew``."""

    what: str
    module: str
    source: Frame | None
    amount: float
    grew: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """A limit and what the run has.

    ``where`` is the module that has most, for a limit on modules; ``unknown`` the number of calls that ``value`` leaves
    out; ``baseline`` is None for an absolute limit.
    """

    limit: Limit
    value: float
    allowed: float
    baseline: float | None
    where: str
    unknown: int
    culprits: tuple[Culprit, ...]

    @property
    def over(self) -> bool:
        return self.value > self.allowed

    @property
    def fails(self) -> bool:
        """The check fails for it; a time that is over only warns."""
        return self.over and self.limit.gates

    @property
    def source(self) -> Frame | None:
        """The line that adds most."""
        return next((culprit.source for culprit in self.culprits if culprit.source), None)


def hold(
    run: Run, findings: Sequence[Finding], limits: Sequence[Limit], stored: Stored | None
) -> tuple[Outcome, ...]:
    """Each limit with what the run has. ``stored`` is the program's baseline.

    Raises ``BudgetError`` for a limit against a baseline that is not there.
    """
    measures = _Measures(run, findings, limits)
    return tuple(_outcome(measures, limit, stored) for limit in limits)


def store(run: Run, findings: Sequence[Finding], limits: Sequence[Limit]) -> Stored:
    """The baseline of a run for these limits."""
    measures = _Measures(run, findings, limits)
    info = run.priced.graph.info
    return Stored(
        {limit.name: measures.value(limit)[0] for limit in limits},
        list(measures.ops().values()),
        run.priced.pricing.gpu.key,
        info.torch,
    )


def read_baseline(path: Path) -> Baseline:
    """The file's baseline; an empty one where there is no file. Raises ``BudgetError`` on any other."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Baseline)
    except FileNotFoundError:
        return Baseline()
    except OSError as error:
        raise BudgetError(f"cannot read {path}: {error.strerror or error}") from None
    except msgspec.MsgspecError as error:
        raise BudgetError(
            f"cannot read {path}: {error}; remove it, then store it anew with --update"
        ) from None
    if found.format != _FORMAT or found.version != 1:
        raise BudgetError(
            f"cannot read {path}: no optrace baseline of version 1; remove it, then store it anew with --update"
        )
    return found


def baseline_bytes(baseline: Baseline, program: str, stored: Stored) -> bytes:
    """The file with one program's baseline replaced, programs in order of their names."""
    programs = dict(sorted({**baseline.programs, program: stored}.items()))
    return msgspec.json.format(msgspec.json.encode(Baseline(programs=programs))) + b"\n"


def _outcome(measures: _Measures, limit: Limit, stored: Stored | None) -> Outcome:
    value, where, unknown = measures.value(limit)
    baseline = None
    allowed = limit.value
    if limit.over_baseline is not None:
        if stored is None or limit.name not in stored.values:
            raise BudgetError(f"no baseline was stored for {limit.name}")
        baseline = stored.values[limit.name]
        allowed = baseline * (1 + limit.over_baseline)
    culprits: tuple[Culprit, ...] = ()
    if value > allowed:
        culprits = tuple(measures.culprits(limit, where, stored if baseline is not None else None))
    return Outcome(limit, value, allowed, baseline, where, unknown, culprits)


def check_modules(graph: OpGraph, limits: Sequence[Limit], said_by: str) -> None:
    """Raises ``BudgetError`` for a limit on modules that fits none of a run: it would hold nothing."""
    paths = list(dict.fromkeys(path for row in graph.module_calls.rows for path in _with_parents(row.path)))
    for pattern in dict.fromkeys(limit.module for limit in limits if limit.module):
        if not any(fits(path, pattern) for path in paths):
            near = get_close_matches(pattern, paths, _NEAR)
            shown = ", ".join(near or paths[:_MOST]) or "no modules"
            more = ", ..." if len(paths) > _MOST and not near else ""
            raise BudgetError(
                f"{said_by}: modules: nothing that ran fits {pattern!r} "
                f"({'did you mean' if near else 'there were'} {shown}{more}{'?' if near else ''})"
            )


class _Measures:
    """What a run has of each figure, module by module where a limit asks for modules."""

    def __init__(self, run: Run, findings: Sequence[Finding], limits: Sequence[Limit]) -> None:
        self._run = run
        self._graph = run.priced.graph
        self._findings = findings
        self._whole: Figures = figures_of(run)
        self._calls = self._calls_of_modules({limit.module for limit in limits if limit.module})
        self._figures: dict[str, Figures] = {}

    def value(self, limit: Limit) -> tuple[float, str, int]:
        """The figure, the module that has most of it, and how many calls it leaves out."""
        if not limit.module:
            if limit.figure.startswith("findings."):
                return sum(finding.count for finding in self._of_kind(limit)), "", 0
            return self._whole.value(limit.figure), "", self._whole.unknown.get(limit.figure, 0)
        most: tuple[float, str, int] = (0.0, "", 0)
        for path, calls in self._calls.get(limit.module, {}).items():
            if limit.figure.startswith("findings."):
                inside = set(calls)
                found = sum(call in inside for finding in self._of_kind(limit) for call in finding.leads)
                own: tuple[float, str, int] = (found, path, 0)
            else:
                figures = self._figures.get(path)
                if figures is None:
                    figures = self._figures[path] = figures_of_calls(self._run, calls)
                own = (figures.value(limit.figure), path, figures.unknown.get(limit.figure, 0))
            most = max(most, own, key=lambda entry: entry[0])
        return most

    def ops(self) -> dict[tuple[str, str, str], OpRow]:
        """The run's calls by op, folded module path and phase."""
        groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for call in range(len(self._graph)):
            groups[self._group(call)].append(call)
        return {
            group: OpRow(*group, len(calls), *(self._amount(name, calls) for name in _STORED))
            for group, calls in sorted(groups.items())
        }

    def culprits(self, limit: Limit, where: str, stored: Stored | None) -> list[Culprit]:
        """What adds most to a figure, or what grew most since the baseline; the largest first."""
        if limit.figure.startswith("findings."):
            return self._finding_culprits(limit, where)
        name = limit.figure
        calls = self._calls[limit.module][where] if limit.module else range(len(self._graph))
        if name == "peak_bytes":
            return self._alive_culprits(calls if limit.module else None)
        groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for call in calls:
            groups[self._group(call)].append(call)
        before: dict[tuple[str, str, str], float] = defaultdict(float)
        # A limit on modules is about one of them, and the baseline keeps all of a folded path together.
        grew = stored is not None and name in _STORED and not limit.module
        if stored is not None and grew:
            for row in stored.ops:
                before[row.op, _below_root(row.module), row.phase] += getattr(row, name)
        found = []
        for group, members in groups.items():
            amount = self._amount(name, members)
            amount -= before.pop((group[0], _below_root(group[1]), group[2]), 0.0)
            if amount > 0:
                line = self._graph.source(members[0]).line
                found.append(Culprit(f"{group[0]} x{len(members):,}", group[1], line, amount, grew))
        return sorted(found, key=lambda culprit: -culprit.amount)[:_MOST]

    def _finding_culprits(self, limit: Limit, where: str) -> list[Culprit]:
        inside = set(self._calls[limit.module][where]) if limit.module else None
        found = []
        for finding in self._of_kind(limit):
            count = sum(inside is None or call in inside for call in finding.leads)
            if count:
                why = finding.why.rstrip(".")
                found.append(Culprit(why, finding.module, finding.source, count, False))
        return sorted(found, key=lambda culprit: -culprit.amount)[:_MOST]

    def _alive_culprits(self, calls: Sequence[int] | None) -> list[Culprit]:
        """What holds most memory when most is allocated, in the run or during some calls of it."""
        graph, memory = self._graph, self._run.priced.memory
        if calls is None:
            peak = peak_of(graph, memory)
        else:
            moment = max(calls, key=memory.live_after.__getitem__)
            peak = alive_at(graph, memory, moment, int(memory.live_after[moment]))
        held: dict[tuple[str, str], list[Holding]] = defaultdict(list)
        for holding in peak.holdings:
            made = holding.born
            held[(holding.use, "") if made is None else self._group(made)[:2]].append(holding)
        found = [Culprit("workspace", "", None, peak.shares.get("workspace", 0), False)]
        for (what, module), holdings in held.items():
            made = holdings[0].born
            line = None if made is None else graph.source(made).line
            nbytes = sum(holding.nbytes for holding in holdings)
            found.append(Culprit(f"{what} x{len(holdings):,}", module, line, nbytes, False))
        return sorted((one for one in found if one.amount), key=lambda culprit: -culprit.amount)[:_MOST]

    def _of_kind(self, limit: Limit) -> Iterable[Finding]:
        wanted = limit.figure.partition(".")[2]
        return (finding for finding in self._findings if finding.kind == wanted)

    def _group(self, call: int) -> tuple[str, str, str]:
        module = self._graph.module_call(call)
        return (
            self._graph.facts(call).name,
            folded(module.path) if module else "",
            self._graph.phase(call),
        )

    def _amount(self, name: str, calls: Iterable[int]) -> float:
        costs, spans = self._run.priced.costs, self._run.timeline.spans
        if name == "wall_us":
            return sum(spans[call].wall_us for call in calls)
        return sum(SUMS[name](costs[call]) or 0 for call in calls)

    def _calls_of_modules(self, patterns: Iterable[str]) -> Mapping[str, Mapping[str, list[int]]]:
        """By pattern and module path that fits it: the calls in the module and below it."""
        found: dict[str, dict[str, list[int]]] = {pattern: {} for pattern in patterns}
        if not found:
            return found
        of_row = [
            [(pattern, path) for path in _with_parents(row.path) for pattern in found if fits(path, pattern)]
            for row in self._graph.module_calls.rows
        ]
        for call in range(len(self._graph)):
            row = self._graph.module_of(call)
            for pattern, path in of_row[row] if row >= 0 else ():
                found[pattern].setdefault(path, []).append(call)
        return found


def _below_root(module: str) -> str:
    """A path without the outermost module, which is named for its class and may be renamed."""
    return module.partition(".")[2]


#: Figures of an op that a baseline keeps.
_STORED = ("launches", "hbm_bytes", "flops", "syncs")


def _with_parents(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
