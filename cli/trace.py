"""``optrace model.py``: run a program, price its ops, print the scoreboard, draw the graph."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import console
from .dispatch import other_commands
from .errors import BAD_INPUT, DONE, INTERRUPTED, PROGRAM_RAISED, BadInput, bad_input, tell, tell_raised
from .options import Assume, Device, Mode, ProgramCommand

if TYPE_CHECKING:
    from optrace.cost.profiles import Pricing
    from optrace.graph import OpGraph
    from optrace.program import Program
    from optrace.report import Report
    from optrace.tracing import Session

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def _version(wanted: bool) -> None:
    if wanted:
        import optrace

        python = ".".join(map(str, sys.version_info[:3]))
        print(f"optrace {optrace.__version__}, torch {metadata.version('torch')}, Python {python}")
        raise typer.Exit


@app.command(cls=ProgramCommand, epilog=other_commands())
def trace(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="model.py, model.py:name, package.module:name, or a graph.json to price and draw again",
            rich_help_panel="Arguments",
        ),
    ],
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="write .svg .png .pdf .dot .txt or .json; repeatable"
        ),
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", min=0, help="top ops to print")] = 10,
    depth: Annotated[int | None, typer.Option(metavar="N", help="fold modules below this depth")] = None,
    max_nodes: Annotated[
        int | None, typer.Option(metavar="N", help="fold a picture that would pass N nodes")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print errors only")] = False,
    mode: Annotated[
        Mode,
        typer.Option(
            help="cuda: run on a GPU; fake: compute nothing, needs none; cpu: compute on the CPU",
            rich_help_panel="Running",
        ),
    ] = Mode.AUTO,
    device: Annotated[
        Device, typer.Option(help="where to put a model and its inputs", rich_help_panel="Running")
    ] = Device.CUDA,
    assume: Annotated[
        Assume, typer.Option(help="what .item() answers in fake mode", rich_help_panel="Running")
    ] = Assume.ERROR,
    steps: Annotated[int, typer.Option(metavar="N", help="steps to record", rich_help_panel="Running")] = 1,
    warmup: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="steps to run before, unrecorded  [default: 1 with --train, else 0]",
            rich_help_panel="Running",
        ),
    ] = None,
    train: Annotated[
        bool,
        typer.Option(
            "--train", help="loss, backward and an optimizer step too", rich_help_panel="Model and inputs"
        ),
    ] = False,
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", help="adamw, sgd, adam, ...", rich_help_panel="Model and inputs")
    ] = "adamw",
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE",
            help="of weights and inputs; with --autocast, the dtype to cast to",
            rich_help_panel="Model and inputs",
        ),
    ] = None,
    autocast: Annotated[
        bool,
        typer.Option(
            "--autocast", help="run the forward pass under torch.autocast", rich_help_panel="Model and inputs"
        ),
    ] = False,
    no_grad: Annotated[
        bool,
        typer.Option(
            "--no-grad", help="run the forward pass under torch.no_grad", rich_help_panel="Model and inputs"
        ),
    ] = False,
    batch: Annotated[
        int | None,
        typer.Option(metavar="N", help="call get_inputs(batch=N)", rich_help_panel="Model and inputs"),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="GPU to price for  [default: the one that runs, else h200]",
            rich_help_panel="Prices",
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="NAME", help="host profile", rich_help_panel="Prices")
    ] = None,
    dispatch_us: Annotated[
        float | None, typer.Option(metavar="US", help="host time to dispatch an op", rich_help_panel="Prices")
    ] = None,
    launch_us: Annotated[
        float | None,
        typer.Option(metavar="US", help="host time to launch a kernel", rich_help_panel="Prices"),
    ] = None,
    bandwidth_tb: Annotated[
        float | None, typer.Option(metavar="TB/S", help="memory bandwidth", rich_help_panel="Prices")
    ] = None,
    version: Annotated[  # noqa: ARG001 - its callback answers
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print versions and exit")
    ] = False,
) -> int:
    """Price an eager PyTorch program op by op and draw its op graph. No GPU is needed.

    optrace model.py --out graph.svg
    """
    from optrace.rendering import DrawOptions, RenderError, check_path, render

    files = out or []
    with bad_input(RenderError, ValueError):
        DrawOptions(depth, max_nodes)
        for file in files:
            check_path(file)
    say = _Speaker(quiet)
    prices = {
        "gpu": gpu,
        "host": host,
        "dispatch_us": dispatch_us,
        "launch_us": launch_us,
        "bandwidth_tb_s": bandwidth_tb,
    }
    given = {name: value for name, value in prices.items() if value is not None}
    place = {"mode": mode.value, "device": device.value, "assume": assume.value}
    options = {
        "train": train,
        "optimizer": optimizer,
        "steps": steps,
        "warmup": warmup,
        "dtype": dtype,
        "autocast": autocast,
        "no_grad": no_grad,
        "batch": batch,
    }
    code = DONE
    if target.endswith(".json"):
        _refuse_program_options(ctx, [*place, *options])
        report = _read(target, given, say)
    else:
        options["args"] = ctx.obj or ()
        chosen = _pricing(given, mode)
        graph, code = _record(target, options, place, chosen, say)
        if not len(graph):
            return INTERRUPTED if code == INTERRUPTED else BAD_INPUT
        from optrace.report import report as price

        report = price(graph, chosen)
    say.report(report, top)
    for file in files:
        with bad_input(RenderError):
            notes = render(report, file, depth=depth, max_nodes=max_nodes)
        say.line(f"wrote {file}")
        for note in notes:
            say.line(f"  {note}")
    return code


class _Speaker:
    """Results to stdout and warnings to stderr, or neither of them."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def line(self, text: str) -> None:
        if not self._quiet:
            print(text, flush=True)

    def warning(self, text: str) -> None:
        if not self._quiet:
            tell(text)

    def report(self, report: Report, top: int) -> None:
        if self._quiet:
            return
        from .summary import show_report, warnings

        show_report(console(), report, top=top)
        for warning in warnings(report):
            tell(warning)

    def progress(self, count: Callable[[], int]) -> AbstractContextManager[None]:
        if self._quiet:
            return nullcontext()
        from .progress import progress

        return progress(count, console(sys.stderr))


def _read(target: str, prices: dict[str, Any], say: _Speaker) -> Report:
    """A recorded graph, priced again."""
    from optrace.graph import GraphFormatError
    from optrace.rendering import read_report

    with bad_input(GraphFormatError, ValueError):
        report = read_report(target, **prices)
    info = report.graph.info
    say.line(f"{target}: {info.program or 'a program'}, recorded in {info.mode} mode with torch {info.torch}")
    say.line(_priced_for(report.pricing))
    return report


def _refuse_program_options(ctx: typer.Context, names: Sequence[str]) -> None:
    for name in names:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise BadInput(
                f"--{name.replace('_', '-')} is about running a program, and {ctx.params['target']} is a recorded graph"
            )
    if ctx.obj is not None:
        raise BadInput(f"arguments after -- are a program's, and {ctx.params['target']} is a recorded graph")


def _pricing(prices: dict[str, Any], mode: Mode) -> Pricing:
    """The profiles asked for; with no GPU named, that of the GPU which will run the program."""
    from optrace.cost.profiles import UnknownProfileError, find_gpu, pricing

    with bad_input(ValueError):
        chosen = pricing(**prices)
    if "gpu" in prices or mode not in (Mode.AUTO, Mode.CUDA):
        return chosen
    import torch

    if not torch.cuda.is_available():
        return chosen
    name = torch.cuda.get_device_name()
    try:
        return pricing(**prices, gpu=find_gpu(name).key)
    except UnknownProfileError:
        tell(
            f"no profile fits this machine's {name}: priced for {chosen.gpu.name} instead (see optrace gpus)"
        )
        return chosen


def _record(
    target: str, options: dict[str, Any], place: dict[str, Any], prices: Pricing, say: _Speaker
) -> tuple[OpGraph, int]:
    """Run the program under the recorder: what was recorded, also of a run that stopped, and the exit code."""
    from optrace.api import answers_of
    from optrace.program import Options, ProgramError, find_program
    from optrace.tracing import TraceError, open_session

    code = DONE
    with ExitStack() as stack:
        with bad_input(TraceError):
            session = stack.enter_context(
                open_session(gpu=prices.gpu.key, answers=answers_of(prices.gpu), **place)
            )
        program: Program | None = None
        try:
            with bad_input(ProgramError), find_program(target, Options(**options)) as program:
                say.line(program.describe)
                say.line(
                    f"{session.notes[0] if session.notes else f'mode {session.mode}'}; {_priced_for(prices)}"
                )
                with say.progress(lambda: len(session.graph)):
                    program.run(session)
        except BadInput:
            raise
        except KeyboardInterrupt:
            tell("interrupted")
            code = INTERRUPTED
        except SystemExit as end:
            tell(end.code if isinstance(end.code, str) else f"{target} ended with exit status {end.code}")
            code = PROGRAM_RAISED
        except Exception as error:
            tell_raised(error)
            code = PROGRAM_RAISED
        if program is not None:
            _check_steps(program, session, code)
            session.describe(program.name, _steps(program, session))
    return session.graph, code


def _steps(program: Program, session: Session) -> int:
    """How many steps were recorded."""
    if not program.marks_steps:
        return program.steps
    return max(1, min(program.steps, session.steps_seen - program.warmup))


def _check_steps(program: Program, session: Session, code: int) -> None:
    """Nothing recorded, or not what was asked for."""
    from optrace.program import RANKS

    seen = session.steps_seen
    if program.marks_steps and not seen and (program.steps > 1 or program.warmup):
        tell("no optrace.step() was passed: --steps and --warmup had nothing to count")
    if len(session.graph) or code != DONE:
        return
    if program.marks_steps and seen:
        raise BadInput(
            f"nothing was recorded: {program.name} took {seen} steps, with --warmup {program.warmup}"
        )
    raise BadInput(
        f"nothing was recorded: {program.describe} dispatched no op (looked for {'; '.join(RANKS)})"
    )


def _priced_for(prices: Pricing) -> str:
    numbers = "measured" if prices.gpu.measured else "datasheet"
    return f"priced for {prices.gpu.name} ({numbers} numbers)"
