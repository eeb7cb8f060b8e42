"""A target as commands take it: a program to run under the recorder, a recorded graph, or another tool's trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .errors import BAD_INPUT, DONE, INTERRUPTED, BadInput, bad_input
from .options import Shared
from .recording import choose_pricing, priced_for, record
from .speaker import Speaker

if TYPE_CHECKING:
    from optrace.rendering import Validation
    from optrace.report import Report

#: How a target's name ends that is no program.
RECORDED = (".json", ".json.gz")


@dataclass(frozen=True, slots=True)
class Priced:
    """A target's report, and what was measured of it where the target holds that."""

    report: Report
    measured: Validation | None = None


def report_of(target: str, ctx: typer.Context, shared: Shared, say: Speaker) -> tuple[Report | None, int]:
    """As ``priced_of``, without what was measured."""
    found, code = priced_of(target, ctx, shared, say)
    return None if found is None else found.report, code


def priced_of(target: str, ctx: typer.Context, shared: Shared, say: Speaker) -> tuple[Priced | None, int]:
    """The target's report and an exit code; no report where nothing was recorded."""
    if target.endswith(RECORDED):
        _refuse_program_options(target, ctx, [*shared.place, *shared.program])
        return _read_any(target, shared.prices, say), DONE
    chosen = choose_pricing(shared.prices, shared.place["mode"], say)
    graph, code = record(target, shared.program | {"args": ctx.obj or ()}, shared.place, chosen, say)
    if not len(graph):
        return None, INTERRUPTED if code == INTERRUPTED else BAD_INPUT
    from optrace.report import report

    return Priced(report(graph, chosen)), code


def _read_any(target: str, prices: dict[str, Any], say: Speaker) -> Priced:
    """A recorded graph, or the trace of another tool."""
    try:
        data = Path(target).read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read {target}: {error.strerror or error}") from None
    from .imported import is_trace, read_imported

    if target.endswith(".gz") or is_trace(data):
        return Priced(*read_imported(target, data, prices, say))
    return Priced(_read(target, prices, say))


def _read(target: str, prices: dict[str, Any], say: Speaker) -> Report:
    """A recorded graph, priced again with the prices given; what it is, is said."""
    from optrace.graph import GraphFormatError
    from optrace.rendering import read_report

    with bad_input(GraphFormatError, ValueError):
        report = read_report(target, **prices)
    info = report.graph.info
    say.line(
        f"{target}: {info.program or 'a program'}, recorded in {info.mode} mode with torch {info.torch or 'of unknown version'}"
    )
    say.line(priced_for(report.pricing))
    return report


def _refuse_program_options(target: str, ctx: typer.Context, names: Sequence[str]) -> None:
    """Raises ``BadInput`` for options that were given and say nothing about a recorded graph."""
    for name in names:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise BadInput(f"{option} is about running a program, and {target} is a recorded graph")
    if ctx.obj is not None:
        raise BadInput(f"arguments after -- are a program's, and {target} is a recorded graph")
