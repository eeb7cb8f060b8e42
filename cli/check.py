"""``optrace check``: hold a program against a budget, and say what it is over and where."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from .console import console, show
from .errors import DONE, OVER_BUDGET, BadInput, bad_input, tell
from .options import ProgramCommand, Shared, with_shared_options
from .speaker import Speaker
from .target import report_of

if TYPE_CHECKING:
    from optrace.diagnosis.budget import Budget
    from optrace.diagnosis.gate import Outcome
    from optrace.report import Report

app = typer.Typer(add_completion=False, rich_markup_mode=None)

#: Where a budget is looked for.
_FILES = ("optrace.toml", "pyproject.toml")
_STYLES = {"ok": "green", "over": "red", "slow": "yellow"}


@app.command(cls=ProgramCommand)
@with_shared_options()
def check(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="model.py, model.py:name, package.module:name, or a graph.json",
            rich_help_panel="Arguments",
        ),
    ],
    budget: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="the limits  [default: optrace.toml, else [tool.optrace] of pyproject.toml]",
        ),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="store this run as the baseline that limits refer to")
    ] = False,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="write the outcome as JUnit XML")] = None,
    github: Annotated[
        bool | None,
        typer.Option(
            "--github/--no-github",
            help="print annotations of GitHub Actions  [default: where GITHUB_ACTIONS is set]",
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="print what is over, and errors, only")
    ] = False,
    *,
    shared: Shared,
) -> int:
    """Hold a program against its budget. Counts gate, times only warn; exit code 1 where it is over.

    optrace check model.py --budget optrace.toml
    """
    from optrace import units
    from optrace.diagnosis.budget import BudgetError, read_budget
    from optrace.rendering.files import cannot_write
    from optrace.rendering.scoreboard import incomplete_lines

    with bad_input(BudgetError):
        limits = read_budget(budget or _default_budget())
        if update:
            limits.limits_for(*_names(target))
        else:
            _check_baseline(limits, target)
    for file in (junit, limits.baseline if update else None):
        reason = "" if file is None else cannot_write(file)
        if reason:
            raise BadInput(f"cannot write {file}: {reason}")
    say = Speaker(quiet)
    report, code = report_of(target, ctx, shared, say)
    if report is None:
        return code
    if code != DONE:
        tell("not checked: the run was not recorded to its end")
        return code
    with bad_input(BudgetError):
        outcomes = _held(report, limits, target, update=update, say=say)
    if junit is not None:
        _write_junit(junit, target, outcomes)
        say.line(f"wrote {junit}")
    if github or (github is None and os.environ.get("GITHUB_ACTIONS") == "true"):
        _annotate(target, outcomes)
    _print(outcomes, quiet=quiet)
    for outcome in outcomes:
        if outcome.unknown and not outcome.over:
            calls = units.counted(outcome.unknown, "call")
            say.warning(f"{outcome.limit.name} leaves out {calls} for which it is not known")
    for line in incomplete_lines(report):
        say.warning(line)
    return OVER_BUDGET if any(outcome.fails for outcome in outcomes) else DONE


def _default_budget() -> Path:
    """The first of the usual files that is there."""
    found = next((Path(name) for name in _FILES if Path(name).is_file()), None)
    if found is None:
        raise BadInput(
            f'no budget: there is neither {" nor ".join(_FILES)} here; write one (the line launches = "baseline" will '
            "do, then run with --update), or name one with --budget"
        )
    return found


def _names(target: str) -> tuple[str, ...]:
    """What a program may be called in a budget: as it was given, without its folder, without the part that is run."""
    path, _, _ = target.partition(":")
    return tuple(dict.fromkeys((target, path, Path(target).name, Path(path).name)))


def _check_baseline(budget: Budget, target: str) -> None:
    """Raises ``BadInput`` where a limit refers to what was never stored: to be asked before a long trace."""
    from optrace.diagnosis.gate import read_baseline

    limits = budget.limits_for(*_names(target))
    stored = read_baseline(budget.baseline).programs.get(target)
    missing = [
        limit.name
        for limit in limits
        if limit.over_baseline is not None and (stored is None or limit.name not in stored.values)
    ]
    if missing:
        there = "holds no baseline" if budget.baseline.exists() else "is not there to hold the baseline"
        raise BadInput(
            f"{budget.baseline} {there} of {target} for {', '.join(missing)}: store it with optrace check {target} "
            "--update"
        )


def _held(report: Report, budget: Budget, target: str, *, update: bool, say: Speaker) -> tuple[Outcome, ...]:
    from optrace.diagnosis.findings import find
    from optrace.diagnosis.gate import baseline_bytes, check_modules, hold, read_baseline, store
    from optrace.rendering.files import write_whole

    limits = budget.limits_for(*_names(target))
    check_modules(report.graph, limits, str(budget.path))
    findings = find(report) if any(limit.figure.startswith("findings.") for limit in limits) else ()
    baseline = read_baseline(budget.baseline)
    stored = baseline.programs.get(target)
    if update:
        stored = store(report, findings, limits)
        try:
            write_whole(budget.baseline, baseline_bytes(baseline, target, stored))
        except OSError as error:
            raise BadInput(f"cannot write {budget.baseline}: {error.strerror or error}") from None
        say.line(f"wrote the baseline of {target} to {budget.baseline}")
    return hold(report, findings, limits, stored)


def _write_junit(file: Path, target: str, outcomes: Sequence[Outcome]) -> None:
    from optrace.rendering.files import write_whole
    from optrace.rendering.junit import junit

    try:
        write_whole(file, junit(target, outcomes))
    except OSError as error:
        raise BadInput(f"cannot write {file}: {error.strerror or error}") from None


def _annotate(target: str, outcomes: Sequence[Outcome]) -> None:
    from optrace.rendering.annotations import workflow_commands
    from optrace.visible import visible

    for line in workflow_commands(target, outcomes):
        print(visible(line))


def _print(outcomes: Sequence[Outcome], *, quiet: bool) -> None:
    """A line a limit, and under each that is over what adds most."""
    from optrace import units
    from optrace.rendering.budget import allowed, amount, details, state

    out = console()
    if quiet:
        for outcome in outcomes:
            if outcome.over:
                for line in details(outcome):
                    show(out, line)
        return
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "right", "left", "left"):
        table.add_column(no_wrap=True, justify=justify)
    table.add_row("", "limit", "has", "allowed", "", style="bright_black")
    for outcome in outcomes:
        shown = state(outcome)
        unknown = f" + {units.UNKNOWN}" if outcome.unknown else ""
        has = f"{amount(outcome, outcome.value)}{unknown}"
        name = outcome.limit.name
        table.add_row(Text(shown, style=_STYLES[shown]), name, has, allowed(outcome), outcome.where)
    show(out, table)
    for outcome in outcomes:
        if outcome.over:
            show(out, "")
            for line in details(outcome):
                show(out, line)
    fails = sum(outcome.fails for outcome in outcomes)
    slow = sum(outcome.over and not outcome.fails for outcome in outcomes)
    show(out, "")
    warned = f"; {units.counted(slow, 'time')} over, which only warns" if slow else ""
    verdict = f"over budget: {fails} of {units.counted(len(outcomes), 'limit')}" if fails else "within budget"
    show(out, f"{verdict}{warned}")
