"""``optrace sweep``: a program on several GPUs, in several batch sizes and dtypes, a line each."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast

import typer
from rich.table import Table

from .errors import DONE, INTERRUPTED, PROGRAM_RAISED, BadInput, bad_input, tell
from .options import ProgramCommand, Shared, batch_sizes, with_shared_options
from .speaker import Speaker
from .target import RECORDED

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext, SpawnContext
    from multiprocessing.process import BaseProcess

    from optrace.cost.profiles import Pricing
    from optrace.rendering.sweep import Case

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True, slots=True)
class Trace:
    """One run of the program, in a process of its own, and the GPUs that it is priced for. ``gpus`` names each as the
    user did, with its profiles; they answer the program alike."""

    target: str
    options: Mapping[str, Any]
    assume: str
    gpus: tuple[tuple[str, Pricing], ...]

    @property
    def title(self) -> str:
        """What sets it apart: ``batch 8, bf16, h100 h200``."""
        batch, dtype = self.options["batch"], self.options["dtype"]
        parts = (f"batch {batch}" if batch else "", dtype or "", " ".join(name for name, _ in self.gpus))
        return ", ".join(filter(None, parts))


@app.command(cls=ProgramCommand)
@with_shared_options(without=["mode", "device", "dtype", "batch", "gpu"])
def sweep(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="model.py, model.py:name or package.module:name",
            rich_help_panel="Arguments",
        ),
    ],
    gpu: Annotated[str, typer.Option(metavar="NAME[,NAME...]", help="GPUs to price for")] = "h200",
    batch: Annotated[
        str | None, typer.Option(metavar="N[,N...]", help="call get_inputs(batch=N) for each N")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE[,...]", help="of weights and inputs; with --autocast, the dtypes to cast to"
        ),
    ] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="write a plot (.svg .png .pdf) or .json; repeatable"
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    jobs: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="processes at a time  [default: one a CPU core]"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print errors only")] = False,
    *,
    shared: Shared,
) -> int:
    """Price a program on several GPUs, in several batch sizes and dtypes. No GPU is needed.

    optrace sweep model.py --gpu h100,h200,b200 --batch 1,8,64 --dtype bf16,fp32
    """
    from optrace import units
    from optrace.rendering import RenderError
    from optrace.rendering.sweep import check_plot, sweep_json, write_sweep

    if target.endswith(RECORDED):
        raise BadInput(
            f"{target} is a recorded graph: a sweep runs the program (optrace {target} --gpu NAME)"
        )
    with bad_input(RenderError):
        for file in out or []:
            check_plot(file)
    groups = _groups(_names("--gpu", gpu), shared.prices)
    options = shared.program | {"args": ctx.obj or ()}
    traces = [
        Trace(target, options | {"dtype": kind, "batch": size}, shared.place["assume"], tuple(group))
        for kind in (_names("--dtype", dtype) if dtype else (None,))
        for size in batch_sizes(batch) or (None,)
        for group in groups
    ]
    say = Speaker(quiet or json)
    cases, code = _run(traces, jobs or os.cpu_count() or 1, say)
    if not cases:
        return code
    title = Path(target).name
    if json:
        print(sweep_json(title, cases).decode(), end="")
    else:
        say.show(_table(cases))
        ran = sum(1 for _ in traces)
        if ran < len(cases):
            shared_by = f"{units.counted(len(cases), 'case')} from {units.counted(ran, 'trace')}"
            say.line(f"{shared_by}: GPUs of one compute capability share theirs")
    for file in out or []:
        with bad_input(RenderError):
            write_sweep(title, cases, file)
        say.line(f"wrote {file}")
    return code


def _names(option: str, text: str) -> tuple[str, ...]:
    """The words of ``h100,h200``, each once, in this order. Raises ``BadInput`` for an empty one."""
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise BadInput(f"{option} {text}: names with commas between, and one is empty")
    return tuple(dict.fromkeys(words))


def _groups(names: tuple[str, ...], prices: dict[str, Any]) -> list[list[tuple[str, Pricing]]]:
    """The GPUs that can share a trace: torch picks kernels, and with them ops, by compute capability."""
    from optrace.cost.profiles import pricing

    groups: dict[object, list[tuple[str, Pricing]]] = {}
    with bad_input(ValueError):
        for name in names:
            priced_as = pricing(name, **prices)
            groups.setdefault((priced_as.gpu.vendor, priced_as.gpu.capability), []).append((name, priced_as))
    return list(groups.values())


def _run(traces: list[Trace], jobs: int, say: Speaker) -> tuple[list[Case], int]:
    """The cases of all traces in the order of the traces, and an exit code. What fails is told, and the rest goes on;
    bad input ends it."""
    found: dict[int, list[Case]] = {}
    code = DONE
    with closing(_ended(traces, jobs)) as ended_traces:
        for number, (cases, ended, message) in ended_traces:
            title = traces[number].title
            if message:
                raise BadInput(f"{title}: {message}")
            found[number] = cases
            if ended:
                tell(f"{title}: failed, and is left out")
                code = ended if ended == INTERRUPTED else PROGRAM_RAISED
            else:
                say.progress_line(f"{len(found)} of {len(traces)} traced: {title}")
    return [case for number in sorted(found) for case in found[number]], code


#: The cases of a trace, the exit code of its run, and what was wrong with what was asked.
_Outcome: TypeAlias = "tuple[list[Case], int, str]"


def _ended(traces: list[Trace], jobs: int) -> Generator[tuple[int, _Outcome], None, None]:
    """What becomes of each trace, by number, as they end. No trace runs on when the reader leaves."""
    processes = _processes()
    waiting = deque(enumerate(traces))
    running: dict[Connection, tuple[int, BaseProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                number, trace = waiting.popleft()
                reads, writes = processes.Pipe(duplex=False)
                process: BaseProcess = processes.Process(target=_send, args=(writes, trace))
                process.start()
                writes.close()  # so that its end ends the pipe
                running[reads] = (number, process)
            for ready in wait(list(running)):
                reads = cast("Connection", ready)
                number, process = running.pop(reads)
                with reads:
                    outcome = _received(reads, process)
                yield number, outcome
    finally:
        for _, process in running.values():
            process.kill()
        for reads, (_, process) in running.items():
            process.join()
            reads.close()


def _received(reads: Connection, process: BaseProcess) -> _Outcome:
    try:
        outcome: _Outcome = reads.recv()
    except EOFError:
        process.join()
        status = process.exitcode or 0
        ended = f"ended with exit status {status}" if status >= 0 else "was killed, for memory perhaps"
        return [], DONE, f"its process {ended}: smaller cases, or --jobs 1"
    process.join()
    return outcome


def _send(writes: Connection, trace: Trace) -> None:
    """In a process of its own."""
    with writes:
        writes.send(run_trace(trace))


def _processes() -> ForkServerContext | SpawnContext:
    """A process for each trace, so that a program finds torch as it is at its start. Where processes can be forked,
    from one that has imported torch and nothing has run in."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # Optimizers import the compiler when they are made.
    context.set_forkserver_preload(["optrace.api", "optrace.program", "torch._dynamo"])
    return context


def run_trace(trace: Trace) -> _Outcome:
    """In a process of its own: what becomes of a trace."""
    import torch

    from optrace.rendering.sweep import case_of
    from optrace.report import report

    from .recording import record

    torch.set_num_threads(1)
    os.dup2(2, 1)  # what programs print has no place between the cases
    place = {"mode": "fake", "device": "cuda", "assume": trace.assume}
    try:
        graph, code = record(trace.target, dict(trace.options), place, trace.gpus[0][1], Speaker(quiet=True))
    except BadInput as error:
        return [], DONE, str(error)
    if code:
        return [], code, ""
    batch, dtype = trace.options["batch"], trace.options["dtype"]
    return [case_of(report(graph, priced_as), name, batch, dtype) for name, priced_as in trace.gpus], DONE, ""


def _table(cases: list[Case]) -> Table:
    from optrace.rendering.sweep import rows

    heading, cells = rows(cases)
    table = Table.grid(padding=(0, 2))
    for name in heading:
        table.add_column(no_wrap=True, justify="left" if name in ("dtype", "gpu", "bound") else "right")
    table.add_row(*heading, style="bright_black")
    for row in cells:
        table.add_row(*row)
    return table
