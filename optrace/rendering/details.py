"""The full record of a call, or of calls drawn as one node, in lines of text: what a tooltip shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optrace import units
from optrace.graph import OpNode, TensorMeta, Value
from optrace.rendering import findings
from optrace.rendering.picture import PictureNode
from optrace.rendering.sums import CostSum, costs_of
from optrace.report import Report

#: Lines or items of a list in a tooltip before it says how many more there are.
_LIST_LINES = 12


def call_details(report: Report, call: int) -> list[str]:
    """Everything recorded of one call, everything it costs, and where each comes from."""
    node = report.graph[call]
    return [
        f"%{node.id} {node.op}",
        *_tensor_lines(report, node),
        *plain_arguments(node),
        *_place_lines(node),
        f"phase {node.phase}, stream {node.stream}",
        *_cost_lines(report, costs_of(report, [call])),
        f"bound: {report.bounds[call]}; price from: {report.costs[call].source}",
        *_finding_lines(report, [call]),
        *_memory_line(report, call),
        *_shortened(
            [
                f"after it, storage {storage} is freed ({units.allocated(report.graph.storages[storage].nbytes)})"
                for storage in node.freed
            ]
        ),
    ]


def node_details(report: Report, node: PictureNode) -> list[str]:
    """What a node of the picture stands for."""
    if node.is_single:
        others = [f"%{call} {report.graph.facts(call).label}" for call in node.calls if call != node.lead]
        with_it = [f"drawn with it: {', '.join(_shortened(others))}"] if others else []
        return [*call_details(report, node.lead), *with_it]
    first = report.graph[node.lead]
    title = f"{node.label} {node.cls}".rstrip()
    lines = [f"{title}: {units.counted(len(node.calls), 'call')}, %{node.calls[0]} to %{node.calls[-1]}"]
    if node.copies > 1:
        lines.append(
            f"{node.copies:,} equal parts of {units.predicted_us(node.cost.wall_us / node.copies)} on average"
        )
    if node.differs:
        lines.append(node.differs)
    if node.kind == "op":
        lines += ["the first of them:", *(f"  {line}" for line in _tensor_lines(report, first))]
    if node.inside:
        lines.append(f"inside: {', '.join(_shortened(node.inside))}")
    lines += _place_lines(first)
    lines += _cost_lines(report, node.cost)
    lines.append(f"bound: {node.bound}, the cause with the largest part of its wall time")
    return [*lines, *_finding_lines(report, node.calls)]


def _finding_lines(report: Report, calls: Sequence[int]) -> list[str]:
    """What is worth changing here."""
    by_call = report.findings_by_call
    found = dict.fromkeys(finding.kind for call in calls for finding in by_call.get(call, ()))
    first = {finding.kind: finding for call in reversed(calls) for finding in by_call.get(call, ())}
    return [f"finding: {first[kind].title} ({findings.claim(first[kind])})" for kind in found]


def _tensor_lines(report: Report, node: OpNode) -> list[str]:
    lines = []
    for tensor, reads, writes in zip(node.inputs, node.reads, node.writes, strict=True):
        use = "in, written" if reads and writes else "written" if writes else "in"
        lines.append(f"{use}: {tensor_text(report, tensor)}")
    lines = _shortened(lines)
    return lines + _shortened([f"out: {tensor_text(report, tensor)}" for tensor in node.outputs])


def tensor_text(report: Report, tensor: TensorMeta) -> str:
    """A tensor with its layout, its storage and its name where it has one."""
    name = tensor_name(report, tensor)
    stride = "" if tensor.is_contiguous else f" stride {list(tensor.stride)}"
    offset = f" offset {tensor.offset}" if tensor.offset else ""
    storage = f"storage {tensor.storage}" if tensor.storage >= 0 else "no storage"
    kind = report.graph.storages[tensor.storage].kind if tensor.storage >= 0 else ""
    return (
        f"{units.tensor(tensor)}{stride}{offset} {tensor.device}, {units.moved(tensor.nbytes)}, "
        f"{storage}{f', {kind}' if kind else ''}{f', {name}' if name else ''}"
    )


def tensor_name(report: Report, tensor: TensorMeta) -> str:
    """The name of a tensor, or of its storage; empty where neither has one."""
    named = report.graph.tensor_names.get(tensor.id)
    if named:
        return named
    return report.graph.storages[tensor.storage].name if tensor.storage >= 0 else ""


def plain_arguments(node: OpNode) -> Iterator[str]:
    """Arguments that are no tensors, by their schema names."""
    names = node.facts.arg_names
    positional = [
        (names[i] if i < len(names) else f"argument {i}", value) for i, value in enumerate(node.args)
    ]
    plain = [(name, value) for name, value in (*positional, *node.kwargs.items()) if not _has_tensor(value)]
    if plain:
        yield "with " + ", ".join(f"{name}={_short_value(value)}" for name, value in plain)


def _short_value(value: Value) -> str:
    """A long list, as the scalars of a foreach op, with its first items."""
    if isinstance(value, tuple) and len(value) > _LIST_LINES:
        shown = ", ".join(map(plain_value, value[:_LIST_LINES]))
        return f"[{shown}, ... and {len(value) - _LIST_LINES:,} more]"
    return plain_value(value)


def plain_value(value: Value) -> str:
    """An argument as Python writes it."""
    if isinstance(value, tuple):
        return f"[{', '.join(plain_value(item) for item in value)}]"
    return value if isinstance(value, str) else repr(value)


def _has_tensor(value: Value) -> bool:
    if isinstance(value, tuple):
        return any(_has_tensor(item) for item in value)
    return isinstance(value, TensorMeta)


def _place_lines(node: OpNode) -> Iterator[str]:
    if node.module is not None:
        yield f"module: {node.module.path} ({node.module.cls}, call {node.module.call})"
    for frame in node.source.frames:
        yield f"{'source' if frame.user else '  in'}: {frame} {frame.function}"


def _memory_line(report: Report, call: int) -> Iterator[str]:
    memory = report.priced.memory
    if memory.peak:
        peak = ": the peak is inside it" if call == memory.peak_call else ""
        share = units.share(memory.live_after[call] / memory.peak)
        yield f"memory after it: {units.allocated(memory.live_after[call])}, {share} of the peak{peak}"


def _cost_lines(report: Report, cost: CostSum) -> Iterator[str]:
    one = cost.calls == 1
    if cost.unpriced:
        unknown = "launches and device time: not known"
        yield unknown if one else f"{unknown} for {units.counted(cost.unpriced, 'call')}"
    if not (one and cost.unpriced):
        yield (
            f"launches {cost.launches:,}: {units.counted(cost.kernels, 'kernel')}, "
            f"{units.counted(cost.memcpys, 'copy', 'copies')}, {units.counted(cost.memsets, 'memset')}"
        )
    traffic = f"{units.moved(cost.hbm_read)} read, {units.moved(cost.hbm_written)} written"
    if cost.unpriced:
        traffic = units.UNKNOWN if one else f"{traffic} + {units.UNKNOWN}"
    yield f"tensors hold {units.moved(cost.tensor_bytes)}; through HBM {traffic}"
    flops = units.UNKNOWN if one and cost.uncounted_flops else units.flop(cost.flops)
    more = f" + {units.UNKNOWN}" if cost.uncounted_flops and not one else ""
    yield (
        f"arithmetic {flops}{more}, {units.flop(cost.matmul_flops)} in matmuls; "
        f"intensity {units.intensity(cost.intensity)}"
    )
    host = cost.host
    yield (
        f"host {units.predicted_us(host.total_us)}: Python {units.predicted_us(host.python_us)}, "
        f"autograd {units.predicted_us(host.autograd_us)}, dispatch {units.predicted_us(host.dispatch_us)}, "
        f"launch {units.predicted_us(host.launch_us)}"
    )
    if not (one and cost.unpriced):
        yield f"device {units.predicted_us(cost.device_us)}"
    wall = report.timeline.wall_us
    share = f" ({units.share(cost.wall_us / wall)} of the run)" if wall else ""
    yield (
        f"wall clock {units.predicted_us(cost.wall_us)}{share}: idle before {units.predicted_us(cost.launch_us)}, "
        f"busy {units.predicted_us(cost.memory_us + cost.compute_us)}, "
        f"host waiting {units.predicted_us(cost.sync_us)}"
    )


def _shortened(lines: list[str] | tuple[str, ...]) -> list[str]:
    if len(lines) <= _LIST_LINES:
        return list(lines)
    return [*lines[: _LIST_LINES - 1], f"... and {len(lines) - _LIST_LINES + 1:,} more"]
