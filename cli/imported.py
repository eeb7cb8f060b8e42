"""Traces of other tools as targets: priced for the GPU that they ran on, with what was measured laid beside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from optrace.graph.foreign import NotJsonError, writer_of

from .console import table_of
from .errors import BadInput, bad_input
from .recording import priced_for
from .speaker import Speaker

if TYPE_CHECKING:
    from optrace.cost.profiles import Pricing
    from optrace.rendering import Validation
    from optrace.report import Report


def is_trace(data: bytes) -> bool:
    """Whether this is another tool's trace, told from its outer fields without torch."""
    try:
        return writer_of(data) not in (None, "optrace graph")
    except NotJsonError:
        return False


def read_imported(
    target: str, data: bytes, prices: dict[str, Any], say: Speaker
) -> tuple[Report, Validation | None]:
    """The trace's report and its measured times; what it is, is said."""
    from optrace.rendering import Validation
    from optrace.report import report
    from optrace.tracing.imports import TraceFileError, read_trace

    try:
        found = read_trace(data, Path(target).name)
    except TraceFileError as error:
        raise BadInput(f"cannot read {target}: {error}") from None
    if not len(found.graph):
        raise BadInput(f"cannot read {target}: it holds no ATen call")
    chosen = _pricing(prices, found.gpu, say)
    ran = f" on {found.gpu}" if found.gpu else ""
    say.line(f"{target}: {found.kind}, {len(found.graph):,} calls{ran}")
    for note in found.graph.info.notes:
        say.line(note)
    say.line(priced_for(chosen))
    measured = found.measured
    view = None
    if measured is not None:
        view = Validation(found.gpu or "its GPU", measured.call_us, measured.wall_us, run=measured)
    return report(found.graph, chosen), view


def show_measured(report: Report, view: Validation, top: int, say: Speaker) -> None:
    """Predicted figures with ``~``, measured ones bold and without."""
    say.show(*_printed(report, view, top))


def _pricing(prices: dict[str, Any], gpu: str, say: Speaker) -> Pricing:
    from optrace.cost.profiles import UnknownProfileError, find_gpu, pricing

    with bad_input(ValueError):
        chosen = pricing(**prices)
    if "gpu" in prices or not gpu:
        return chosen
    try:
        return pricing(**prices, gpu=find_gpu(gpu).key)
    except UnknownProfileError:
        say.warning(f"no profile fits the trace's {gpu}: priced for {chosen.gpu.name} (see optrace gpus)")
        return chosen


def _printed(report: Report, view: Validation, top: int) -> Iterator[Table | Text | str]:
    from optrace import units
    from optrace.rendering.scoreboard import at_least
    from optrace.rendering.validation import error_text, measured_text

    run = view.run
    assert run is not None
    yield ""
    yield Text(f"measured on {view.device} by the profiler, which slows the host", style="bold")
    table = table_of("", "predicted", "measured", "error")
    device, launches = report.totals["device_us"], report.totals["launches"]
    measured_us = sum(view.call_us) + run.unplaced_us
    table.add_row("wall clock", *_pair(report.timeline.wall_us, view.wall_us, device.complete))
    table.add_row("device time", *_pair(device.value, measured_us, device.complete))
    table.add_row(
        "launches",
        Text(at_least(units.count(launches.value), launches.complete), style="bright_black"),
        Text(units.count(len(run.launches)), style="bold"),
        error_text(launches.value, len(run.launches)) if launches.complete else "",
    )
    yield table
    if run.unplaced_us:
        yield f"{measured_text(run.unplaced_us)} of the device time belong to no ATen call of the trace"
    if not top:
        return
    sums: dict[str, list[float]] = {}
    unknown: set[str] = set()
    for call, us in enumerate(view.call_us):
        name = report.graph.facts(call).name
        row = sums.setdefault(name, [0, 0, 0, 0.0, 0.0])
        cost = report.costs[call]
        if cost.device_us is None or cost.launches is None:
            unknown.add(name)
        for place, amount in enumerate(
            (1, cost.launches or 0, run.call_launches[call], cost.device_us or 0.0, us)
        ):
            row[place] += amount
    yield ""
    ops = table_of("op, longest first", "calls", "launches", "predicted", "measured", "error")
    for op, (calls, said, seen, predicted, measured) in sorted(sums.items(), key=lambda item: -item[1][4])[
        :top
    ]:
        known = op not in unknown
        expected = at_least(f"~{units.count(said)}", known)
        counted = units.count(seen) if known and said == seen else f"{expected} / {units.count(seen)}"
        ops.add_row(op, units.count(calls), counted, *_pair(predicted, measured, known))
    yield ops


def _pair(predicted: float, measured: float, complete: bool) -> tuple[Text, Text, str]:
    """Both times, and the error where the prediction leaves nothing out."""
    from optrace import units
    from optrace.rendering.scoreboard import at_least
    from optrace.rendering.validation import error_text, measured_text

    return (
        Text(at_least(units.predicted_us(predicted), complete), style="bright_black"),
        Text(measured_text(measured), style="bold"),
        error_text(predicted, measured) if complete else "",
    )
