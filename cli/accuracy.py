"""``optrace accuracy``: predicted against measured, over a record of programs that ran on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from .console import console, show, table_of
from .errors import bad_input

if TYPE_CHECKING:
    from optrace.measuring.accuracy import Accuracy, Pair
    from optrace.measuring.cures import CuresAccuracy

app = typer.Typer(add_completion=False, rich_markup_mode=None)

#: Figure: what it says, and the unit it is printed in.
FIGURES = {
    "launches": ("launches", 1),
    "flops": ("matmul FLOPs, against torch's counter", 1e9),
    "hbm_bytes": ("HBM bytes of kernels (MB)", 1e6),
    "hbm_read": ("of these read (MB)", 1e6),
    "hbm_written": ("of these written (MB)", 1e6),
    "tensor_bytes": ("for comparison: tensor bytes as HBM bytes (MB)", 1e6),
    "peak_bytes": ("memory the step adds (MB)", 1e6),
    "device_us": ("device time (us)", 1),
    "device_us_from_bytes": ("for comparison: tensor bytes / bandwidth (us)", 1),
    "wall_us": ("wall clock (us)", 1),
    "wall_us_measured_kernels": ("the same with measured kernel times (us)", 1),
    "wall_us_from_tax": ("for comparison: launches x 10 us + bytes / bandwidth (us)", 1),
    "issue_us": ("host time (us)", 1),
}

#: What it is said of whether a cure is worth it.
CURE_NAMES = {
    "graph": "a CUDA graph",
    "graph_measured_eager": "a CUDA graph, said from eager as it was measured,",
}

#: The same for the cures.
CURE_FIGURES = {
    "graph_us": ("CUDA graph replay (us)", 1),
    "graph_us_measured_kernels": ("the same from eager's measured device time (us)", 1),
    "compiled_us": ("compiled wall clock (us)", 1),
    "compiled_gpu_us": ("compiled device time (us)", 1),
    "compiled_k": ("compiled launches", 1),
    "both_us": ("compiled with CUDA graphs, wall clock (us)", 1),
    "graph_peak": ("change of peak memory, graph (MB)", 1e6),
    "compiled_peak": ("change of peak memory, compiled (MB)", 1e6),
}

#: What stands in the table of programs.
_COLUMNS = ("launches", "hbm_bytes", "peak_bytes", "device_us", "wall_us")


@app.command()
def accuracy(
    record: Annotated[
        Path, typer.Argument(metavar="RECORD", help="a record of measured programs (.jsonl, .jsonl.gz)")
    ],
    dram: Annotated[
        Path | None, typer.Option(metavar="FILE", help="HBM bytes a kernel, by hardware counters")
    ] = None,
    cures: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the same programs as CUDA graphs and compiled")
    ] = None,
    op: Annotated[str | None, typer.Option(metavar="OP", help="launches of one op only, as aten.sum")] = None,
    only: Annotated[
        str | None, typer.Option(metavar="TEXT", help="programs whose name has TEXT in it")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="GPU profile  [default: the record's GPU]")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="host profile  [default: this machine's, if calibrated]"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Price the calls of recorded programs, without looking at what they launched, and compare.

    Errors are relative, per program; bias is the median of the signed ones.
    """
    from optrace.cost.profiles import pricing
    from optrace.measuring.accuracy import compare
    from optrace.measuring.cures import compare_cures, read_cures
    from optrace.measuring.record import RecordError, read_dram, read_machine, read_runs

    with bad_input(RecordError, ValueError):
        chosen = pricing(gpu or read_machine(record).device, host)
        counters = read_dram(dram) if dram is not None else None
        runs = (run for run in read_runs(record) if only is None or only in run.name)
        result = compare(runs, chosen, dram=counters, op=op)
        if not any(result.figures.values()):
            raise ValueError(_nothing(record, op, only))
        cured = None
        if cures is not None:
            measured = read_cures(cures)
            runs = (run for run in read_runs(record) if only is None or only in run.name)
            cured = compare_cures(runs, measured, chosen)
    if json:
        _print_json(result, cured)
    else:
        _print(result)
        if cured is not None:
            _print_cures(cured)


def _nothing(record: Path, op: str | None, only: str | None) -> str:
    """Why there is nothing to compare."""
    named = f" with {only!r} in its name" if only else ""
    return f"{record}: no call of {op!r} in any program{named}" if op else f"{record}: no program{named}"


def _print(result: Accuracy) -> None:
    from optrace.measuring.times import off_by

    out = console()
    if "launches" in result.figures:
        show(out, _programs(result.figures, FIGURES, _COLUMNS))
        show(out, "")
    show(out, _distributions(result.figures, FIGURES))
    show(out, "")
    show(
        out,
        f"op calls with the exact number of launches: {result.op_calls_exact:.2%}; "
        f"programs within 1 % of their launches: {result.programs_within_1pct:.1%}",
    )
    if result.op_times:
        show(
            out,
            f"device time of single calls, time-weighted: {off_by(result.op_times):.1%} off; "
            f"bounds agree for {result.bounds.share:.1%} of the measured wall clock",
        )
    for name, why in result.not_comparable.items():
        show(out, f"not compared by counters: {name}: {why}")
    show(out, "")
    show(out, _worst(result))
    show(out, "")
    show(out, _classes(result))
    show(out, "")
    show(out, _op_times(result))


def _print_cures(result: CuresAccuracy) -> None:
    out = console()
    show(out, "")
    show(out, _programs(result.figures, CURE_FIGURES, tuple(CURE_FIGURES)))
    show(out, "")
    show(out, _distributions(result.figures, CURE_FIGURES))
    for cure, rows in result.worth.items():
        wrong = [name for name, predicted, measured in rows if predicted != measured]
        said = f"; wrong for {', '.join(wrong)}" if wrong else ""
        named = CURE_NAMES.get(cure, cure)
        show(out, f"whether {named} takes 5 % off the wall clock: right for {result.right(cure):.0%}{said}")
    for name in result.missing:
        show(out, f"not compared: {name} is not in the record")


def _programs(
    pairs_of: Mapping[str, Sequence[Pair]], titles: Mapping[str, tuple[str, float]], columns: Sequence[str]
) -> Table:
    """Predicted, measured and error of each program."""
    figures = [name for name in columns if name in pairs_of]
    table = table_of("program", *(titles[name][0] for name in figures))
    by_program: dict[str, dict[str, Pair]] = {}
    for name in figures:
        for pair in pairs_of[name]:
            by_program.setdefault(pair.program, {})[name] = pair
    for program, pairs in by_program.items():
        table.add_row(program, *(_cell(pairs.get(name), titles[name][1]) for name in figures))
    return table


def _cell(pair: Pair | None, unit: float) -> str:
    if pair is None:
        return "-"
    return f"~{pair.predicted / unit:,.0f} / {pair.measured / unit:,.0f}  {_error(pair, '+.0%')}"


def _error(pair: Pair, format: str) -> str:
    return "measured 0" if pair.error is None else f"{pair.error:{format}}"


def _distributions(pairs_of: Mapping[str, Sequence[Pair]], titles: Mapping[str, tuple[str, float]]) -> Table:
    from optrace.measuring.accuracy import Distribution

    table = table_of("figure (predicted ~ / measured)", "programs", "median", "mean", "p90", "max", "bias")
    for name, (title, _) in titles.items():
        spread = Distribution.of(pairs_of.get(name, ()))
        if spread is not None:
            shares = (spread.median, spread.mean, spread.p90, spread.max)
            count = str(spread.count)
            if spread.measured_zero:
                count += f" + {spread.measured_zero} measured 0"
            table.add_row(title, count, *(f"{share:.1%}" for share in shares), f"{spread.bias:+.1%}")
    return table


def _worst(result: Accuracy) -> Table:
    """The ten largest errors of each figure, by name."""
    from optrace.measuring.accuracy import worst

    table = table_of("worst ten", "program", "predicted / measured", "error")
    for name, pairs in result.figures.items():
        title, unit = FIGURES[name]
        for pair in worst(pairs, 10):
            table.add_row(
                title,
                pair.program,
                f"~{pair.predicted / unit:,.1f} / {pair.measured / unit:,.1f}",
                _error(pair, "+.1%"),
            )
    return table


def _classes(result: Accuracy) -> Table:
    table = table_of("launches by op", "calls", "exact", "predicted", "measured")
    for row in result.op_classes:
        if row.exact < row.calls:
            table.add_row(row.op, str(row.calls), str(row.exact), f"~{row.predicted}", str(row.measured))
    return table


def _op_times(result: Accuracy) -> Table:
    """The overloads whose calls miss most time."""
    table = table_of("device time by op (us)", "calls", "predicted", "measured", "missed", "of it")
    for row in result.op_times[:20]:
        share = row.off_us / row.measured_us if row.measured_us else 0.0
        figures = (
            f"~{row.predicted_us:,.0f}",
            f"{row.measured_us:,.0f}",
            f"{row.off_us:,.0f}",
            f"{share:.0%}",
        )
        table.add_row(row.op, str(row.calls), *figures)
    return table


def _print_json(result: Accuracy, cured: CuresAccuracy | None) -> None:
    import msgspec

    from optrace.measuring.times import off_by

    found: dict[str, Any] = {name: _spread(pairs) for name, pairs in result.figures.items()}
    if "launches" in found:
        found["launches"]["op_calls_exact"] = result.op_calls_exact
        found["launches"]["programs_within_1pct"] = result.programs_within_1pct
    found["programs"] = list(_by_program(result.figures).values())
    found["op_classes"] = [
        {"op": r.op, "calls": r.calls, "exact": r.exact, "predicted": r.predicted, "measured": r.measured}
        for r in result.op_classes
    ]
    found["op_device_us_off"] = off_by(result.op_times)
    found["bounds_agree"] = result.bounds.share
    found["op_times"] = [
        {
            "op": r.op,
            "calls": r.calls,
            "predicted_us": r.predicted_us,
            "measured_us": r.measured_us,
            "off_us": r.off_us,
        }
        for r in result.op_times
    ]
    found["not_comparable"] = dict(result.not_comparable)
    if cured is not None:
        found["cures"] = _cures_json(cured)
    print(msgspec.json.format(msgspec.json.encode(found)).decode())


def _cures_json(cured: CuresAccuracy) -> dict[str, Any]:
    found: dict[str, Any] = {name: _spread(pairs) for name, pairs in cured.figures.items()}
    programs = _by_program(cured.figures)
    for cure, rows in cured.worth.items():
        found[f"{cure}_worth_it"] = {"count": len(rows), "right": cured.right(cure)}
        for program, predicted, measured in rows:
            row = programs.setdefault(program, {"name": program})
            row[f"{cure}_worth_it"] = {"predicted": predicted, "measured": measured}
    found["programs"] = list(programs.values())
    found["missing"] = list(cured.missing)
    return found


def _spread(pairs: Sequence[Pair]) -> dict[str, Any]:
    """A figure's distribution; where nothing was measured of any program, only how many."""
    import msgspec

    from optrace.measuring.accuracy import Distribution

    spread = Distribution.of(pairs)
    if spread is None:
        return {"count": 0, "measured_zero": len(pairs)}
    found: dict[str, Any] = msgspec.to_builtins(spread)
    return found


def _by_program(pairs_of: Mapping[str, Sequence[Pair]]) -> dict[str, dict[str, Any]]:
    """A row a program: predicted, measured and error (null where nothing was measured) of each figure."""
    rows: dict[str, dict[str, Any]] = {}
    for name, pairs in pairs_of.items():
        for pair in pairs:
            row = rows.setdefault(pair.program, {"name": pair.program})
            row[name] = {"predicted": pair.predicted, "measured": pair.measured, "error": pair.error}
    return rows
