"""``optrace model.py``: run a program, price its ops, print the scoreboard, draw the graph."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .dispatch import other_commands
from .errors import BAD_INPUT, DONE, INTERRUPTED, BadInput, bad_input
from .options import Assume, Device, Mode, ProgramCommand
from .recording import choose_pricing, priced_for, record
from .speaker import Speaker

if TYPE_CHECKING:
    from optrace.report import Report

app = typer.Typer(add_completion=False, rich_markup_mode=None)

# Options under a heading of the help text.
_running = partial(typer.Option, rich_help_panel="Running")
_model = partial(typer.Option, rich_help_panel="Model and inputs")
_price = partial(typer.Option, rich_help_panel="Prices")


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
        Mode, _running(help="cuda: run on a GPU; fake: compute nothing, needs none; cpu: compute on the CPU")
    ] = Mode.AUTO,
    device: Annotated[Device, _running(help="where to put a model and its inputs")] = Device.CUDA,
    assume: Annotated[Assume, _running(help="what .item() answers in fake mode")] = Assume.ERROR,
    steps: Annotated[int, _running(metavar="N", help="steps to record")] = 1,
    warmup: Annotated[
        int | None,
        _running(metavar="N", help="steps to run before, unrecorded  [default: 1 with --train, else 0]"),
    ] = None,
    train: Annotated[bool, _model("--train", help="loss, backward and an optimizer step too")] = False,
    optimizer: Annotated[str, _model(metavar="NAME", help="adamw, sgd, adam, ...")] = "adamw",
    dtype: Annotated[
        str | None,
        _model(metavar="DTYPE", help="of weights and inputs; with --autocast, the dtype to cast to"),
    ] = None,
    autocast: Annotated[bool, _model("--autocast", help="run the forward pass under torch.autocast")] = False,
    no_grad: Annotated[bool, _model("--no-grad", help="run the forward pass under torch.no_grad")] = False,
    batch: Annotated[int | None, _model(metavar="N", help="call get_inputs(batch=N)")] = None,
    gpu: Annotated[
        str | None, _price(metavar="NAME", help="GPU to price for  [default: the one that runs, else h200]")
    ] = None,
    host: Annotated[str | None, _price(metavar="NAME", help="host profile")] = None,
    dispatch_us: Annotated[float | None, _price(metavar="US", help="host time to dispatch an op")] = None,
    launch_us: Annotated[float | None, _price(metavar="US", help="host time to launch a kernel")] = None,
    bandwidth_tb: Annotated[float | None, _price(metavar="TB/S", help="memory bandwidth")] = None,
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
    say = Speaker(quiet)
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
    prices = {
        "gpu": gpu,
        "host": host,
        "dispatch_us": dispatch_us,
        "launch_us": launch_us,
        "bandwidth_tb_s": bandwidth_tb,
    }
    given = {name: value for name, value in prices.items() if value is not None}
    code = DONE
    if target.endswith(".json"):
        _refuse_program_options(ctx, [*place, *options])
        report = _read(target, given, say)
    else:
        chosen = choose_pricing(given, mode.value, say)
        graph, code = record(target, options | {"args": ctx.obj or ()}, place, chosen, say)
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


def _read(target: str, prices: dict[str, Any], say: Speaker) -> Report:
    """A recorded graph, priced again."""
    from optrace.graph import GraphFormatError
    from optrace.rendering import read_report

    with bad_input(GraphFormatError, ValueError):
        report = read_report(target, **prices)
    info = report.graph.info
    say.line(f"{target}: {info.program or 'a program'}, recorded in {info.mode} mode with torch {info.torch}")
    say.line(priced_for(report.pricing))
    return report


def _refuse_program_options(ctx: typer.Context, names: Sequence[str]) -> None:
    """Options that were given and say nothing about a recorded graph."""
    target = ctx.params["target"]
    for name in names:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise BadInput(f"{option} is about running a program, and {target} is a recorded graph")
    if ctx.obj is not None:
        raise BadInput(f"arguments after -- are a program's, and {target} is a recorded graph")
