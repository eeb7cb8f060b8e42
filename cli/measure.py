"""``optrace measure``: one step of a program on this machine's GPU, beside what was predicted of it."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from .console import table_of
from .errors import BAD_INPUT, DONE, INTERRUPTED, PROGRAM_RAISED, BadInput, bad_input, tell, tell_raised
from .options import ProgramCommand, Shared, with_shared_options
from .recording import choose_pricing, priced_for
from .speaker import Speaker
from .target import RECORDED

if TYPE_CHECKING:
    from optrace.measuring.beside import Figure, OpFigures
    from optrace.measuring.counters import Counted
    from optrace.measuring.limits import Limits
    from optrace.measuring.recorder import Measurement
    from optrace.measuring.steps import Steps
    from optrace.program import Program
    from optrace.report import Report
    from optrace.tracing import Session

app = typer.Typer(add_completion=False, rich_markup_mode=None)

#: Steps that the child of Nsight Compute runs before the one that is counted.
_WARM_STEPS = 3

#: The share of --limit after which further kernels go uncounted, and the seconds that Nsight Compute and torch may take to
#: start.
_COUNTING_SHARE, _START_S = 0.75, 60.0

#: Counting tells how far it is every so many kernels.
_TOLD_EVERY = 100

#: What the validation view can be written as.
PICTURES = (".svg", ".png", ".pdf", ".dot", ".html")


@app.command(cls=ProgramCommand)
@with_shared_options(without=["mode", "device", "assume", "steps", "warmup"])
def measure(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="model.py, model.py:name or package.module:name; a script must mark its steps with optrace.step",
            rich_help_panel="Arguments",
        ),
    ],
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write a record: .jsonl, .jsonl.gz (docs/record.md)")
    ] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="draw the graph coloured by prediction error; repeatable"
        ),
    ] = None,
    counters: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="write each kernel's HBM bytes by Nsight Compute: .jsonl, .jsonl.gz"
        ),
    ] = None,
    top: Annotated[
        int, typer.Option(metavar="N", min=0, help="ops to print, the worst predicted first")
    ] = 10,
    repeats: Annotated[int, typer.Option(metavar="N", min=3, help="most timings of each stage")] = 30,
    seconds: Annotated[
        float, typer.Option(metavar="S", min=0.01, help="time for the timings of a stage")
    ] = 5.0,
    limit: Annotated[float, typer.Option(metavar="S", min=1, help="stop a stage that takes longer")] = 60.0,
    warmup: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="marked steps to leave out in each run of the program  [default: 1 where it marks more]",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print errors only")] = False,
    counted_step: Annotated[bool, typer.Option("--counted-step", hidden=True)] = False,
    *,
    shared: Shared,
) -> int:
    """Measure one step on this machine's CUDA GPU: times, launches and memory, beside the prediction.

    optrace measure model.py --save record.jsonl.gz --out graph.svg
    """
    options = shared.program | {"args": ctx.obj or ()}
    files = _Files(save, tuple(out or ()), counters)
    files.check()
    _check_gpu(target)
    asked = _Asked(target, options, warmup, repeats, seconds, limit)
    say = Speaker(quiet)
    with _told(target) as ended:
        if counted_step:
            _run_counted_step(asked)
        else:
            _measure(asked, shared.prices, files, top, say)
    return ended.code


@dataclass(slots=True)
class _End:
    """The exit code."""

    code: int = DONE


@contextmanager
def _told(target: str) -> Iterator[_End]:
    """Each way in which the program can end, told and as an exit code."""
    end = _End()
    try:
        yield end
    except BadInput:
        raise
    except KeyboardInterrupt:
        tell("interrupted")
        end.code = INTERRUPTED
    except SystemExit as left:
        tell(left.code if isinstance(left.code, str) else f"{target} ended with exit status {left.code}")
        end.code = PROGRAM_RAISED
    except Exception as error:
        tell_raised(error)
        end.code = PROGRAM_RAISED


@dataclass(frozen=True, slots=True)
class _Asked:
    """What to measure and how; ``options`` are those of ``optrace.program.Options``."""

    target: str
    options: dict[str, Any]
    warmup: int | None
    repeats: int
    seconds: float
    limit: float

    def limits(self) -> Limits:
        """A stage that hangs ends the process: nothing that Python does reaches it."""
        from optrace.measuring.limits import Limits

        def hung(stage: str) -> None:
            tell(
                f"{stage} did not come back within {self.limit:g} s (--limit) and could not be stopped: given up"
            )
            sys.stdout.flush()
            os._exit(BAD_INPUT)

        return Limits(self.limit, hung)

    def child(self) -> list[str]:
        """The command that runs the same step once, to be counted."""
        words = [sys.executable, "-m", "optrace.cli", "measure", self.target, "--counted-step"]
        for name, value in self.options.items():
            option = f"--{name.replace('_', '-')}"
            if value is True:
                words.append(option)
            elif (
                name != "args"
                and value not in (None, False)
                and (name != "optimizer" or self.options["train"])
            ):
                words += [option, str(value)]
        if self.warmup is not None:
            words += ["--warmup", str(self.warmup)]
        words += ["--limit", f"{self.limit:g}"]
        return [*words, "--", *self.options["args"]]


@dataclass(frozen=True, slots=True)
class _Files:
    """Where results go."""

    save: Path | None
    pictures: tuple[Path, ...]
    counters: Path | None

    def check(self) -> None:
        """Raises ``BadInput`` for a file that could not be written: asked before a long run."""
        from optrace.rendering import RenderError, check_path
        from optrace.rendering.files import cannot_write

        for file in (self.save, self.counters):
            if file is None:
                continue
            if not file.name.endswith((".jsonl", ".jsonl.gz")):
                raise BadInput(f"cannot write {file}: a record is JSON lines (.jsonl, .jsonl.gz)")
            if reason := cannot_write(file):
                raise BadInput(f"cannot write {file}: {reason}")
        with bad_input(RenderError):
            for file in self.pictures:
                if file.suffix.lower() not in PICTURES:
                    raise BadInput(
                        f"cannot write {file}: the view is a picture or a page (one of {', '.join(PICTURES)})"
                    )
                check_path(file)


def _check_gpu(target: str) -> None:
    import torch

    if target.endswith(RECORDED):
        raise BadInput(f"optrace measure runs a program, and {target} is a recorded graph")
    if not torch.cuda.is_available():
        raise BadInput(
            f"optrace measure needs a CUDA GPU and torch sees none: `optrace {target}` predicts without one"
        )


@contextmanager
def _steps(asked: _Asked, limits: Limits, **place: Any) -> Iterator[tuple[Program, Session, Steps]]:
    """The program set up on the GPU."""
    from optrace.measuring.limits import StageTimeoutError
    from optrace.measuring.steps import MeasureError, steps_of
    from optrace.program import Options, ProgramError, find_program
    from optrace.tracing import TraceError, open_session

    with (
        bad_input(ProgramError, TraceError, MeasureError, StageTimeoutError),
        open_session("cuda", **place) as session,
        find_program(asked.target, Options(**asked.options)) as program,
    ):
        with limits.stage("setting the program up"):
            steps = steps_of(program, session, asked.warmup)
        yield program, session, steps


def _run_counted_step(asked: _Asked) -> None:
    """What the child of Nsight Compute does."""
    from optrace.measuring.counters import counted_step

    limits = asked.limits()
    with _steps(asked, limits) as (_, _, steps), limits.stage("the counted step"):
        steps.run(nullcontext, _WARM_STEPS)
        steps.run(lambda: counted_step(_COUNTING_SHARE * asked.limit), 1)


def _measure(asked: _Asked, given: dict[str, Any], files: _Files, top: int, say: Speaker) -> None:
    from optrace.api import answers_of
    from optrace.measuring.beside import remark_on_counters
    from optrace.measuring.machine import gpu_state, machine_line, remarks_before
    from optrace.measuring.recorder import measure
    from optrace.report import report as price

    remarks = remarks_before(gpu_state())  # first of all: later the work on the GPU is ours
    prices = choose_pricing(given, "cuda", say)
    limits = asked.limits()
    with _steps(asked, limits, gpu=prices.gpu.key, answers=answers_of(prices.gpu)) as (
        program,
        session,
        steps,
    ):
        say.line(program.describe)
        say.line(priced_for(prices))
        measured = measure(
            session,
            program.name,
            steps,
            repeats=asked.repeats,
            seconds=asked.seconds,
            limits=limits,
            progress=lambda stage: say.line(f"  {stage}"),
        )
        session.describe(program.name)
    measured.row["remarks"] = remarks = [*remarks, *measured.remarks]
    counted = _count(asked, say) if files.counters is not None else None
    if counted is not None and (remark := remark_on_counters(measured, counted)):
        remarks.append(remark)
    # The host as fast as it was while it was timed.
    loop_us = measured.row["python_loop_us"]
    report = price(measured.graph, replace(prices, host=prices.host.at_speed(loop_us)))
    machine = machine_line()
    if files.save is not None:
        _write_lines(files.save, [machine, measured.row])
        say.line(f"wrote {files.save}")
    if files.counters is not None and counted is not None:
        rows = [
            {"name": kernel.name, "dram_read": kernel.read, "dram_write": kernel.written, "ns": kernel.ns}
            for kernel in counted.kernels
        ]
        _write_lines(
            files.counters, [machine, {"name": program.name, "complete": counted.complete, "kernels": rows}]
        )
        say.line(f"wrote {files.counters}")
    say.show(*_printed(report, measured, counted, top))
    for remark in remarks:
        say.warning(remark)
    _draw(files.pictures, report, measured, str(machine["device"]), say)


def _count(asked: _Asked, say: Speaker) -> Counted | None:
    """Bytes by kernel, or a warning: everything else stands without them."""
    from optrace.measuring.counters import CountersError, count

    say.line("  counting the bytes of each kernel (Nsight Compute)")

    def tell_kernels(begun: int) -> None:
        if begun % _TOLD_EVERY == 0:
            say.line(f"    {begun} kernels")

    try:
        # The child has a limit for setting the program up, and one for the step.
        return count(asked.child(), _START_S + 2 * asked.limit, tell_kernels)
    except CountersError as error:
        say.warning(f"no counters: {error}")
        return None


def _write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    from optrace.rendering.files import write_whole

    data = b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows)
    try:
        write_whole(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror or error}") from None


def _draw(files: Sequence[Path], report: Report, measured: Measurement, device: str, say: Speaker) -> None:
    from optrace.rendering import RenderError, Validation, render

    if not files:
        return
    view = Validation(device, measured.call_us, measured.wall.median, measured.event_us)
    for file in files:
        with bad_input(RenderError):
            notes = render(report, file, measured=view)
        say.line(f"wrote {file}")
        for note in notes:
            say.line(note)


def _printed(
    report: Report, measured: Measurement, counted: Counted | None, top: int
) -> Iterator[Table | Text | str]:
    """Predicted figures with ``~``, measured ones bold and without."""
    from optrace.measuring.beside import by_op, figures, time_weighted_error

    rows = by_op(report, measured)
    yield ""
    yield _totals(figures(report, measured, counted) if counted else figures(report, measured))
    error = time_weighted_error(rows)
    yield ""
    if error is not None:
        yield f"device time by call: {error:.1%} off, weighted by time"
    if top:
        yield _ops(rows[:top])


def _totals(rows: Sequence[Figure]) -> Table:
    table = table_of("a step", "predicted", "measured", "error", "10 to 90 %", "timings")
    for row in rows:
        spread = row.spread
        table.add_row(
            row.name,
            Text(_predicted(row), style="bright_black"),
            Text(_figure(row.measured, row.unit), style="bold"),
            "-" if row.error is None else f"{row.error:+.1%}",
            f"{_figure(spread.p10, 'us')} to {_figure(spread.p90, 'us')}" if spread else "",
            str(spread.n) if spread else "",
        )
    return table


def _ops(rows: Sequence[OpFigures]) -> Table:
    table = table_of(
        "op, worst predicted first",
        "calls",
        "launches",
        "predicted",
        "measured",
        "error",
        "apart",
        "events",
        "L2 flushed",
    )
    for row in rows:
        same = row.predicted_launches == row.launches
        error = f"{row.predicted_us / row.measured_us - 1:+.1%}" if row.measured_us else "-"
        table.add_row(
            row.op,
            str(row.calls),
            str(row.launches) if same else f"~{row.predicted_launches} / {row.launches}",
            Text(f"~{_figure(row.predicted_us, 'us')}", style="bright_black"),
            Text(_figure(row.measured_us, "us"), style="bold"),
            error,
            _figure(row.apart_us, "us"),
            "-" if row.event_us is None else _figure(row.event_us, "us"),
            "-" if row.event_cold_us is None else _figure(row.event_cold_us, "us"),
        )
    return table


def _predicted(row: Figure) -> str:
    return f"~{_figure(row.predicted, row.unit)}"


def _figure(value: float, unit: str) -> str:
    """A figure in its unit, with no mark of a prediction."""
    from optrace import units

    if unit == "us":
        return units.predicted_us(value).removeprefix("~")
    return {"bytes": units.moved, "allocated": units.allocated, "count": units.count}[unit](value)
