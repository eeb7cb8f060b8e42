"""``--verify``: the cures measured on this machine's GPU, beside what was predicted of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .console import table_of
from .errors import BadInput, bad_input
from .speaker import Speaker
from .target import RECORDED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rich.table import Table

    from optrace.measuring.verify import Measured
    from optrace.report import Report

_COLUMNS = ("", "launches", "peak", "device", "wall", "speed-up", "prepared in")


def check_verify(target: str, record: Path | None) -> None:
    """Raises ``BadInput`` where there is nothing to measure or it cannot be kept: asked before a long trace."""
    import torch

    from optrace.measuring.cures import read_cures
    from optrace.measuring.record import RecordError
    from optrace.rendering.files import cannot_write

    if target.endswith(RECORDED):
        raise BadInput(f"--verify runs the program, and {target} is a recorded graph")
    if not torch.cuda.is_available():
        raise BadInput("--verify measures the cures on a CUDA GPU, and this machine has none: leave it out")
    if record is None:
        return
    if record.suffix != ".jsonl":
        raise BadInput(f"cannot write {record}: a record of cures is JSON lines (.jsonl)")
    if reason := cannot_write(record):
        raise BadInput(f"cannot write {record}: {reason}")
    if record.exists():
        with bad_input(RecordError):
            read_cures(record)


def verify_cures(
    target: str, options: dict[str, Any], report: Report, record: Path | None, say: Speaker
) -> None:
    """Run the program's step in each of the four ways, print predicted and measured side by side, and keep what was
    measured in ``record``."""
    from optrace.measuring.verify import VerifyError, verify
    from optrace.program import Options, ProgramError, find_program
    from optrace.tracing import TraceError, open_session

    with (
        bad_input(ProgramError, TraceError, VerifyError),
        find_program(target, Options(**options)) as program,
    ):
        # A session hears the program's clocks and compiles nothing: it ends before anything is timed.
        with open_session("cuda") as session:
            step = program.step(session)
        measured = verify(step, progress=lambda name: say.progress_line(f"measuring {name}"))
    say.show("", comparison(report, measured))
    for line in misjudged(report, measured):
        say.line(line)
    for row in measured:
        if row.failed:
            say.warning(f"{row.name} could not be measured: {row.failed}")
    if record is not None:
        _keep(record, program.name, measured)
        say.line(f"wrote {record}")


def _keep(record: Path, name: str, measured: Sequence[Measured]) -> None:
    from optrace.measuring.cures import cures_row, with_row
    from optrace.measuring.record import RecordError
    from optrace.rendering.files import write_whole

    try:
        with bad_input(RecordError):
            write_whole(record, with_row(record, cures_row(name, measured)))
    except OSError as error:
        raise BadInput(f"cannot write {record}: {error.strerror or error}") from None


def comparison(report: Report, measured: Sequence[Measured]) -> Table:
    """Predicted figures with ``~`` on one line, measured ones under them."""
    from optrace import units
    from optrace.rendering.cures import speed_up

    table = table_of(*_COLUMNS)
    steps = report.graph.info.steps
    eager = next((row.wall_us for row in measured if not row.failed and row.name == "eager"), None)
    for row, truth in zip(report.cures.rows, measured, strict=True):
        table.add_row(
            f"{row.name}, predicted",
            units.count(row.launches / steps),
            units.allocated(row.peak_bytes),
            units.predicted_us(row.device_us / steps),
            units.predicted_us(row.wall_us / steps),
            speed_up(row),
            style="bright_black",
        )
        if truth.failed:
            table.add_row("  measured", "failed")
            continue
        assert truth.wall_us is not None
        table.add_row(
            "  measured",
            units.count(truth.launches),
            units.allocated(truth.peak_bytes),
            _measured_us(truth.device_us),
            _measured_us(truth.wall_us),
            f"{eager / truth.wall_us:.2f}x" if eager else units.UNKNOWN,
            f"{truth.prepare_s:.1f} s",
            style="bold",
        )
    return table


def misjudged(report: Report, measured: Sequence[Measured]) -> Iterator[str]:
    """Cures of which it was wrongly said whether they take ``WORTH_IT`` off the wall clock, and what was wrong: the
    eager step they are compared with, or their own time."""
    from optrace import units
    from optrace.diagnosis.cures import WORTH_IT

    steps = report.graph.info.steps
    eager, *cures = report.cures.rows
    eager_us, *times = (None if truth.failed else truth.wall_us for truth in measured)
    if eager_us is None:
        return
    for row, us in zip(cures, times, strict=True):
        if us is None or row.worth_it == (us < (1 - WORTH_IT) * eager_us):
            continue
        says = "was predicted to take" if row.worth_it else "was not predicted to take"
        does = "does not" if row.worth_it else "does"
        predicted_us = row.wall_us / steps
        if (predicted_us < (1 - WORTH_IT) * eager_us) != row.worth_it:
            name, said, was = "the eager step", eager.wall_us / steps, eager_us
        else:
            name, said, was = row.name, predicted_us, us
        yield (
            f"{row.name} {says} {WORTH_IT:.0%} off the eager step and {does}: {name} takes {_measured_us(was)}, "
            f"{units.predicted_us(said)} were predicted"
        )


def _measured_us(us: float | None) -> str:
    """No ``~``: it was measured."""
    from optrace import units

    return units.predicted_us(us).removeprefix("~")
