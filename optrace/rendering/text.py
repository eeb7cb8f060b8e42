"""The report as plain text: scoreboard, verdict, tax, top ops, then every call, a line each.

The listing is in SSA form: each value is named by the call that made it, ``%3``, or ``@name`` where it
stood before the run; a tensor written in place goes on under the name of the call that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from optrace import units
from optrace.graph import OpNode, TensorMeta, Value
from optrace.rendering import findings
from optrace.rendering.cures import COLUMNS, blocker_lines, cure_rows, region_rows
from optrace.rendering.details import plain_value, tensor_name
from optrace.rendering.options import DrawOptions, Rendered
from optrace.rendering.scoreboard import (
    missing_figures,
    peak_storages,
    provenance,
    scoreboard_rows,
    tax_layers,
    top_ops,
    verdict_line,
)
from optrace.report import Report
from optrace.visible import visible

_TOP_OPS = 15
_TOP_STORAGES = 15


def render(report: Report, options: DrawOptions) -> Rendered:  # noqa: ARG001 - a listing is never folded
    """ASCII text, with any other letters of the program, and line breaks in its names, written as escapes."""
    text = "".join(visible(line).replace("\n", "\\n") + "\n" for line in _lines(report))
    return Rendered(text.encode("ascii", "backslashreplace"))


def _lines(report: Report) -> Iterator[str]:
    info = report.graph.info
    yield f"{info.program or 'program'} ({info.mode} trace{f', torch {info.torch}' if info.torch else ''})"
    yield verdict_line(report)
    yield ""
    yield from _table([(row.label, row.value, row.detail) for row in scoreboard_rows(report)], "<><")
    if not report.verdict.idle:
        yield ""
        yield "ways to run it"
        yield from _table([COLUMNS, *cure_rows(report)], "<>>>>>>><")
        yield from blocker_lines(report)
    regions = region_rows(report)
    if regions:
        yield ""
        yield "what a compiler would fuse: launches, bytes and device time before and after"
        yield from _table(regions, "<>>><")
    yield ""
    yield "host tax by layer"
    yield from _table(
        [
            (f"  {layer.name}", units.predicted_us(layer.us), units.share(layer.share), layer.meaning)
            for layer in tax_layers(report)
        ],
        "<>><",
    )
    yield ""
    yield f"top ops by share of the {units.predicted_us(report.timeline.wall_us)} wall clock"
    yield from _table(list(_top_rows(report)), "<>>>>>>>><")
    yield ""
    memory = report.priced.memory
    yield (
        f"alive at the peak of {units.allocated(memory.peak)} allocated, {units.allocated(memory.reserved)} reserved"
    )
    yield from _table(list(_memory_rows(report)), "<>><<<<")
    yield ""
    yield findings.headline(report.findings)
    yield from findings.paragraphs(report.findings)
    yield ""
    yield from (*info.notes, *missing_figures(report), *provenance(report))
    yield ""
    yield "every call in order: what it gives, its part of the wall clock, what bounds it"
    yield from _table(list(_listing(report)), "<<><<")


def _top_rows(report: Report) -> Iterator[tuple[str, ...]]:
    yield ("  op", "calls", "share", "wall", "idle", "busy", "launches", "HBM", "FLOP", "bound")
    for top in top_ops(report, _TOP_OPS):
        cost = top.cost
        unpriced = cost.unpriced == cost.calls
        yield (
            f"  {top.op}",
            units.count(cost.calls),
            units.share(top.share),
            units.UNKNOWN if unpriced else units.predicted_us(cost.wall_us),
            units.UNKNOWN if unpriced else units.predicted_us(cost.launch_us + cost.sync_us),
            units.UNKNOWN if unpriced else units.predicted_us(cost.memory_us + cost.compute_us),
            units.UNKNOWN if unpriced else units.count(cost.launches),
            units.UNKNOWN if unpriced else units.moved(cost.hbm_bytes),
            units.UNKNOWN if cost.uncounted_flops == cost.calls else units.flop(cost.flops),
            top.bound,
        )


def _memory_rows(report: Report) -> Iterator[tuple[str, ...]]:
    yield ("  storage", "bytes", "share", "use", "alive", "module", "line")
    peak = report.peak
    for row in peak_storages(report, _TOP_STORAGES):
        held = row.holding
        size, share = units.allocated(held.nbytes), units.share(row.share)
        yield (f"  {row.name}", size, share, held.use, row.life, row.module, row.line)
    rest = peak.holdings[_TOP_STORAGES:]
    if rest:
        nbytes = sum(held.nbytes for held in rest)
        size, share = units.allocated(nbytes), units.share(nbytes / report.priced.memory.peak)
        yield (f"  {units.counted(len(rest), 'more storage')}", size, share, "", "", "", "")
    workspace = peak.shares.get("workspace")
    if workspace:
        library = report.priced.memory.library
        kept = f"{units.allocated(library)} kept by cuBLAS" if library else ""
        inside = f"{units.allocated(workspace - library)} within the call" if workspace > library else ""
        share = units.share(workspace / report.priced.memory.peak)
        said = ", ".join(part for part in (kept, inside) if part)
        yield ("  no storage", units.allocated(workspace), share, "workspace", said, "", "")


def _listing(report: Report) -> Iterator[tuple[str, ...]]:
    names: dict[int, str] = {}
    for node in report.graph:
        call = f"%{node.id} = {node.op}({', '.join(_arguments(report, node, names))})"
        for tensor, writes in zip(node.inputs, node.writes, strict=True):
            if writes:
                names[tensor.id] = f"%{node.id}"
        for place, tensor in enumerate(node.outputs):
            names[tensor.id] = f"%{node.id}" if len(node.outputs) == 1 else f"%{node.id}.{place}"
        cost, span, line = report.costs[node.id], report.timeline.spans[node.id], node.source.line
        unsure = " ?" if cost.source == "unknown" and cost.device is not None else ""
        yield (
            call,
            f": {', '.join(map(units.tensor, node.outputs)) or '()'}",
            (units.UNKNOWN if cost.device is None else units.predicted_us(span.wall_us)) + unsure,
            report.bounds[node.id],
            str(line) if line else "",
        )


def _arguments(report: Report, node: OpNode, names: dict[int, str]) -> Iterator[str]:
    def shown(value: Value) -> str:
        if isinstance(value, TensorMeta):
            return names.get(value.id) or _outside_name(report, value)
        if isinstance(value, tuple):
            return f"[{', '.join(map(shown, value))}]"
        return plain_value(value)

    yield from map(shown, node.args)
    for name, value in node.kwargs.items():
        yield f"{name}={shown(value)}"


def _outside_name(report: Report, tensor: TensorMeta) -> str:
    """A tensor that no recorded call made."""
    return f"@{tensor_name(report, tensor) or f't{tensor.id}'}"


def _table(rows: list[tuple[str, ...]], aligned: str) -> Iterable[str]:
    """Columns padded to their widest entry; a very wide one does not push the others away."""
    widths = [min(72, max(map(len, column))) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (f"{text:{align}{width}}" for text, align, width in zip(row, aligned, widths, strict=True))
        yield "  ".join(padded).rstrip()
