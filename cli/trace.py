"""``optrace model.py``: run a program, price its ops, print the scoreboard, draw the graph."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from .dispatch import other_commands
from .errors import BadInput, bad_input
from .options import BatchesOption, ProgramCommand, Shared, Shown, batch_sizes, with_shared_options
from .speaker import Speaker
from .target import priced_of, report_of
from .verify import check_verify, verify_cures

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        import optrace

        python = ".".join(map(str, sys.version_info[:3]))
        print(f"optrace {optrace.__version__}, torch {metadata.version('torch')}, Python {python}")
        raise typer.Exit


class _DefaultCommand(ProgramCommand):
    """What is meant where no command is named: its help ends with the commands there are."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the same whatever was given
        with formatter.section("Commands"):
            formatter.write_dl(other_commands())


@app.command(cls=_DefaultCommand)
@with_shared_options(without=["batch"])
def trace(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="model.py, model.py:name, package.module:name, a graph.json to price and draw again, or a trace of "
            "torch.profiler or ExecutionTraceObserver (.json, .json.gz)",
            rich_help_panel="Arguments",
        ),
    ],
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="write .html .svg .png .pdf .dot .txt .json .trace.json .perfetto.json .explorer.json "
            ".nodedata.json .graphml .nodelink.json .csv or .parquet; repeatable",
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="SUFFIX", help="write the files in this format, whatever their names say"
        ),
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", min=0, help="top ops to print")] = 10,
    findings: Annotated[
        bool, typer.Option("--findings", help="print what is worth changing, where, and what it would save")
    ] = False,
    depth: Annotated[int | None, typer.Option(metavar="N", help="fold modules below this depth")] = None,
    max_nodes: Annotated[
        int | None, typer.Option(metavar="N", help="fold a picture that would pass N nodes")
    ] = None,
    expand: Annotated[
        list[str] | None,
        typer.Option(
            "--expand", metavar="PATH", help="draw a module apart from its equals, opened; repeatable"
        ),
    ] = None,
    unfold: Annotated[bool, typer.Option("--unfold", help="draw each of equal parts")] = False,
    shown: Annotated[
        list[Shown] | None,
        typer.Option("--show", metavar="WHAT", help="draw besides: fusion, what a compiler would fuse"),
    ] = None,
    epilogues: Annotated[
        bool,
        typer.Option(
            "--epilogues", help="fusion also merges matmuls with what is pointwise around them (max-autotune)"
        ),
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="measure the cures on this machine's GPU, beside the prediction")
    ] = False,
    save_cures: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="with --verify: keep what is measured, for optrace accuracy --cures"
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print errors only")] = False,
    batch: BatchesOption = None,
    version: Annotated[  # noqa: ARG001 - its callback answers
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print versions and exit")
    ] = False,
    *,
    shared: Shared,
) -> int:
    """Price an eager PyTorch program op by op and draw its op graph. No GPU is needed.

    optrace model.py --out graph.svg
    """
    from optrace.rendering import FORMATS, DrawOptions, RenderError, check_path, render

    files = out or []
    with bad_input(RenderError, ValueError):
        DrawOptions(depth, max_nodes)
        for file in files:
            check_path(file, format)
    if format is not None and not files:
        raise BadInput(f"--format {format} says how to write a file: name one with --out")
    if save_cures is not None and not verify:
        raise BadInput(f"--save-cures {save_cures} keeps what --verify measures: add --verify")
    if verify:
        check_verify(target, save_cures)
    sizes = batch_sizes(batch)
    if len(sizes) > 1 and not any(check_path(file, format) is FORMATS[".html"] for file in files):
        raise BadInput(
            f"--batch {batch}: several sizes are for a page to switch between; add --out report.html"
        )
    say = Speaker(quiet)

    def sized(size: int | None) -> Shared:
        return replace(shared, program=shared.program | {"batch": size})

    first = sized(sizes[0] if sizes else None)
    found, code = priced_of(target, ctx, first, say)
    if found is None:
        return code
    report = replace(found.report, epilogues=epilogues)
    say.report(report, top, findings=findings)
    if found.measured is not None:
        from .imported import show_measured

        show_measured(report, found.measured, top, say)
    batches = {sizes[0]: report} if sizes else {}
    for size in sizes[1:]:
        other, code = report_of(target, ctx, sized(size), say)
        if other is None or code:
            return code
        batches[size] = replace(other, epilogues=epilogues)
    # What needs no layout first: a layout can take long, and fail.
    for file in sorted(files, key=lambda file: check_path(file, format).needs_layout):
        with bad_input(RenderError):
            notes = render(
                report,
                file,
                format=format,
                depth=depth,
                max_nodes=max_nodes,
                show=shown or (),
                batches=batches,
                expand=expand or (),
                unfold=unfold,
                measured=found.measured,
            )
        say.line(f"wrote {file}")
        for note in notes:
            say.line(f"  {note}")
    if verify and not code:
        verify_cures(target, first.program | {"args": ctx.obj or ()}, report, save_cures, say)
    return code
