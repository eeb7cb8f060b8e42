"""What a node says of itself in a table or a graph for other tools: one row a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from optrace.cost.pricing import OpCost
from optrace.graph import OpNode
from optrace.rendering.options import DrawOptions
from optrace.report import Report
from optrace.timeline import Span

#: A figure of a node; None where it is not known.
Figure = str | int | float | bool | None

#: What a column's figures are: what a typed file declares.
Kind = Literal["text", "count", "number", "flag"]


@dataclass(frozen=True, slots=True)
class Row:
    """A call with all that is known of it."""

    node: OpNode
    cost: OpCost
    span: Span
    bound: str
    measured_us: float | None


@dataclass(frozen=True, slots=True)
class Column:
    """A figure by name, with its unit in the name; ``meaning`` is what the documentation says."""

    name: str
    kind: Kind
    figure: Callable[[Row], Figure]
    meaning: str


COLUMNS: tuple[Column, ...] = (
    Column("id", "count", lambda row: row.node.id, "number of the call, from 0 in the order of dispatch"),
    Column("op", "text", lambda row: row.node.op, "ATen overload"),
    Column("module", "text", lambda row: row.node.module.path if row.node.module else None, "path of the innermost module"),
    Column("module_class", "text", lambda row: row.node.module.cls if row.node.module else None, "its class"),
    Column("module_call", "count", lambda row: row.node.module.call if row.node.module else None, "how often it was called, this call included"),
    Column("phase", "text", lambda row: row.node.phase, "forward, backward, optimizer or other"),
    Column("source", "text", lambda row: _source(row.node), "line of the user's code"),
    Column("stream", "count", lambda row: row.node.stream, "CUDA stream, 0 for the default one"),
    Column("inputs", "text", lambda row: "; ".join(map(str, row.node.inputs)), "dtype and shape of each tensor"),
    Column("outputs", "text", lambda row: "; ".join(map(str, row.node.outputs)), "dtype and shape of each tensor"),
    Column("launches", "count", lambda row: row.cost.launches, "kernels + memcpys + memsets"),
    Column("kernels", "count", lambda row: row.cost.work.kernels, "kernel launches"),
    Column("memcpys", "count", lambda row: row.cost.work.memcpys, "copies by the copy engine"),
    Column("memsets", "count", lambda row: row.cost.work.memsets, "fills by the copy engine"),
    Column("tensor_bytes", "count", lambda row: row.cost.work.tensor_bytes, "bytes that the touched tensors hold"),
    Column("hbm_read", "count", lambda row: row.cost.hbm_read, "bytes read from HBM"),
    Column("hbm_written", "count", lambda row: row.cost.hbm_written, "bytes written to HBM"),
    Column("flops", "count", lambda row: row.cost.work.flops, "all arithmetic"),
    Column("matmul_flops", "count", lambda row: row.cost.work.matmul_flops, "2 x multiply-adds of products, convolutions and attention"),
    Column("intensity", "number", lambda row: row.cost.intensity, "FLOPs a byte of HBM"),
    Column("kind", "text", lambda row: row.cost.work.kind, "how its kernels touch memory"),
    Column("math_dtype", "text", lambda row: row.cost.work.math_dtype, "what the arithmetic is done in"),
    Column("host_wait", "flag", lambda row: row.cost.work.host_wait, "the host waits for the device"),
    Column("bound", "text", lambda row: row.bound, "what bounds the call: launch, memory, compute, sync, host, unknown"),
    Column("cost_source", "text", lambda row: row.cost.source, "where the counts come from: rule, schema, measured, unknown"),
    Column("predicted_host_us", "number", lambda row: row.cost.host.total_us, "host time"),
    Column("predicted_device_us", "number", lambda row: row.cost.device_us, "device time"),
    Column("predicted_start_us", "number", lambda row: row.span.start_us, "start on the device's clock"),
    Column("predicted_gap_us", "number", lambda row: row.span.gap_us, "the device idle just before, with nothing issued"),
    Column("predicted_wait_us", "number", lambda row: row.span.wait_us, "idle time that would vanish without this call's wait"),
    Column("predicted_wall_us", "number", lambda row: row.span.wall_us, "share of the wall clock"),
    Column("measured_device_us", "number", lambda row: row.measured_us, "device time by a profiler; absent where none was at work"),
)  # fmt: skip


def rows(report: Report, options: DrawOptions) -> Iterator[Row]:
    """The calls in their order."""
    view = options.measured
    for call, node in enumerate(report.graph):
        yield Row(
            node,
            report.costs[call],
            report.timeline.spans[call],
            report.bounds[call],
            None if view is None else view.call_us[call],
        )


def figures(row: Row) -> Mapping[str, Figure]:
    """The known figures of a call, by column."""
    found = ((column.name, column.figure(row)) for column in COLUMNS)
    return {name: figure for name, figure in found if figure is not None}


def _source(node: OpNode) -> str | None:
    line = node.source.line
    return None if line is None else str(line)
