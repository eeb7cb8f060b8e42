"""What is printed of a report: the verdict, the scoreboard, the top ops, what the figures rest on."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from optrace import units
from optrace.diagnosis import Bound
from optrace.diagnosis.findings import Severity
from optrace.rendering import missing_figures, provenance, scoreboard_rows, top_ops, verdict_line
from optrace.rendering.cures import COLUMNS, blocker_lines, cure_rows
from optrace.rendering.findings import claim, headline, place, sentence, title
from optrace.rendering.scoreboard import at_least, partial
from optrace.report import Report

from .console import show

#: Close to the picture's colours, in the sixteen that every terminal has.
STYLES: dict[Bound, str] = {
    "launch": "yellow",
    "memory": "bright_blue",
    "compute": "green",
    "sync": "red",
    "host": "bright_black",
    "unknown": "bright_black",
}


SEVERITY_STYLES: dict[Severity, str] = {"high": "red", "medium": "yellow", "low": "bright_black"}


def show_report(out: Console, report: Report, *, top: int) -> None:
    """The verdict, the scoreboard and the ``top`` ops."""
    show(out, "")
    show(out, Text(verdict_line(report), style=f"bold {STYLES[report.verdict.bottleneck or 'host']}"))
    show(out, "")
    show(out, _scoreboard(report))
    if report.verdict.idle:
        return
    show(out, "")
    show(out, _cures(report))
    for line in blocker_lines(report):
        show(out, Text(line, style="yellow"))
    if top:
        show(out, "")
        show(out, f"top ops by share of the {units.predicted_us(report.timeline.wall_us)} wall clock")
        show(out, _top_ops(report, top))
    show(out, "")
    for line in (*provenance(report), report.pricing.gpu.note):
        show(out, Text(line, style="bright_black"))


def show_findings(out: Console, report: Report) -> None:
    """What is worth changing, the largest first."""
    show(out, "")
    show(out, Text(headline(report.findings), style="bold"))
    for finding in report.findings:
        style = SEVERITY_STYLES[finding.severity]
        show(out, Text.assemble((f"{finding.severity:6}", style), f"  {title(finding)}; {claim(finding)}"))
        show(out, Text(f"        {place(finding)}", style="bright_black"))
        show(out, f"        {sentence(finding.why)}")
        show(out, f"        {sentence(finding.change)}")


def warnings(report: Report) -> list[str]:
    """What the figures leave out."""
    return list(missing_figures(report))


def _scoreboard(report: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right", style="bold")
    table.add_column(style="bright_black")
    for row in scoreboard_rows(report):
        table.add_row(row.label, row.value, row.detail)
    steps = report.graph.info.steps
    if steps > 1:
        table.add_row("a step", *_a_step(report, steps))
    return table


def _cures(report: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    for number, _ in enumerate(COLUMNS):
        table.add_column(no_wrap=True, justify="right" if 0 < number < len(COLUMNS) - 1 else "left")
    table.add_row(*COLUMNS, style="bright_black")
    for row in cure_rows(report):
        table.add_row(*row)
    return table


def _a_step(report: Report, steps: int) -> tuple[str, str]:
    launches, device = report.totals["launches"], report.totals["device_us"]
    tax = report.totals["host_us"].value / steps
    wall = units.predicted_us(report.timeline.wall_us / steps)
    return (
        at_least(wall, device.complete),
        f"{partial(launches, units.number(launches.value / steps))} launches, "
        f"{units.predicted_us(tax)} of host tax (1 of {steps} steps)",
    )


def _top_ops(report: Report, top: int) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, overflow="ellipsis")
    for _ in range(5):
        table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True)
    table.add_row("  op", "calls", "share", "wall", "launches", "HBM", "bound", style="bright_black")
    for op in top_ops(report, top):
        known = op.cost.unpriced < op.cost.calls
        table.add_row(
            f"  {op.op}",
            units.count(op.cost.calls),
            units.share(op.share),
            units.predicted_us(op.cost.wall_us) if known else units.UNKNOWN,
            units.count(op.cost.launches) if known else units.UNKNOWN,
            units.moved(op.cost.hbm_bytes) if known else units.UNKNOWN,
            Text(op.bound, style=STYLES[op.bound]),
        )
    return table
