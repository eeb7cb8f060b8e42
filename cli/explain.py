"""``optrace explain aten.sum``: how an op is priced, by which rule and file."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

import optrace

from .console import console, show
from .errors import BadInput

if TYPE_CHECKING:
    from optrace.graph import OpFacts

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def explain(
    op: Annotated[
        str,
        typer.Argument(
            metavar="OP", help="aten.sum, aten.sum.dim_IntList or sum", rich_help_panel="Arguments"
        ),
    ],
) -> None:
    """Say how an op is priced: which rule counts its launches, bytes and FLOPs, and what the kernels of a small call
    of it are timed as.

    optrace explain aten.sum
    """
    from optrace.tracing.imports.overloads import overloads_of

    packet, wanted = _packet(op)
    found = [one for one in overloads_of(packet) if not wanted or one._overloadname == wanted]
    if not found:
        names = ", ".join(one._overloadname for one in overloads_of(packet))
        raise BadInput(f"{packet} has no overload {wanted!r} (one of {names})")
    out = console()
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bright_black")
    table.add_column()
    for row in _rows(packet, found):
        table.add_row(*row)
    show(out, Text(packet if len(found) > 1 else str(found[0]), style="bold"))
    show(out, table)


def _packet(op: str) -> tuple[str, str]:
    """``aten.sum`` and the overload's name, empty where none was named. Raises ``BadInput`` for no such op."""
    from optrace.tracing.imports.overloads import overloads_of

    name = op.replace("::", ".").removeprefix("torch.ops.")
    if name.startswith("torch."):
        name = f"aten.{name.removeprefix('torch.')}"
    for full in (name, f"aten.{name}"):
        for packet, _, overload in ((full, "", ""), full.rpartition(".")):
            if packet.count(".") == 1 and overloads_of(packet):
                return packet, overload
    close = get_close_matches(name.removeprefix("aten.").partition(".")[0], _aten_names(), n=3)
    hint = f" (did you mean {', '.join(f'aten.{one}' for one in close)}?)" if close else ""
    raise BadInput(f"torch has no op {op!r}{hint}")


def _aten_names() -> list[str]:
    import torch

    names = torch._C._dispatch_get_all_op_names()
    return sorted(
        {name.removeprefix("aten::").partition(".")[0] for name in names if name.startswith("aten::")}
    )


def _rows(packet: str, overloads: Sequence[Any]) -> Iterator[tuple[str, str]]:
    from optrace.cost.rules import RULES
    from optrace.tracing.facts import facts_of

    plain = [op for op in overloads if not facts_of(op).out_args] or list(overloads)
    for op in plain:
        yield "schema" if op is plain[0] else "", str(op._schema).removeprefix("aten::")
    facts = [facts_of(op) for op in plain]
    if all(one.composite and not (one.name in RULES or one.packet in RULES) for one in facts):
        yield "counts", "none of its own: torch takes it apart into other ops, and those are priced"
        yield from _parts(plain)
        return
    yield from _counts(facts)
    if not all(one.is_view for one in facts):
        yield from _device(packet, facts)
        yield from _example(plain)
    yield from _host(packet, facts)


def _parts(overloads: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """What torch makes of a small call."""
    from optrace.cost.profiles import pricing

    from .example_call import example_of

    example = example_of(overloads, pricing())
    if example is not None:
        calls = Counter(node.op for node in example.report.graph)
        made = ", ".join(f"{op} x{times}" if times > 1 else op for op, times in calls.items())
        yield "example", f"{example.text} makes {made}"


def _counts(facts: Sequence[OpFacts]) -> Iterator[tuple[str, str]]:
    """The rule of each overload; where several share one, once."""
    from optrace.cost.rules import RULES, table

    said: dict[str, list[str]] = {}
    about: dict[str, Callable[..., Any]] = {}
    for one in facts:
        rule = RULES.get(one.name) or RULES.get(one.packet)
        where: Callable[..., Any]
        if one.is_view:
            text, where = "a view: launches nothing and moves nothing", table.work_of
        elif rule is not None:
            text, where = f"rule {rule.__name__}", rule
        elif "pointwise" in one.tags:
            text, where = (
                "the schema's default of a pointwise op: reads its inputs, writes its outputs, one FLOP an element",
                table.schema_default,
            )
        else:
            text, where = (
                "the schema's default: one launch that reads the inputs and writes the outputs; FLOPs not known",
                table.schema_default,
            )
        said.setdefault(text, []).append(one.name.rpartition(".")[2])
        about[text] = where
    for place, (text, names) in enumerate(said.items()):
        yield "counts" if not place else "", text + (f"  ({', '.join(names)})" if len(said) > 1 else "")
        yield from _told(about[text])


def _device(packet: str, facts: Sequence[OpFacts]) -> Iterator[tuple[str, str]]:
    from optrace.cost.device import launches_of, streams
    from optrace.cost.device.kernel import LISTERS

    names = [packet, *(one.name for one in facts)]
    listers = list(dict.fromkeys(LISTERS[name] for name in names if name in LISTERS))
    for lister in listers:
        yield "device", f"launches listed by {lister.__name__}"
        yield from _told(lister)
    if not listers and any("pointwise" in one.tags for one in facts):
        yield "device", "a pointwise kernel"
        yield from _told(streams.pointwise)
    elif not listers:
        yield (
            "device",
            "by what its rule says that its kernels are; one kernel over all its bytes, timed as other",
        )
        yield from _told(launches_of)


def _example(overloads: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """A small call, and how long each of its launches takes."""
    from optrace import units
    from optrace.cost.device import DeviceModel
    from optrace.cost.profiles import pricing

    from .example_call import example_of

    priced_as = pricing()
    example = example_of(overloads, priced_as)
    if example is None:
        yield "example", "none: its schema does not say what a call of it looks like"
        return
    report = example.report
    node, cost = report.graph[0], report.costs[0]
    yield "example", f"{example.text} on {priced_as.gpu.name}"
    flops = "FLOPs not known" if cost.work.flops is None else units.flop(cost.work.flops)
    launched = (
        "launches not known" if cost.launches is None else units.counted(cost.launches, "launch", "launches")
    )
    yield "", f"{launched}, {units.moved(cost.work.tensor_bytes)} of tensors, {flops}"
    model = DeviceModel(priced_as.gpu, priced_as.target(report.graph.info))
    listed = [
        (launch.kind, us / launch.count)
        for launch, us, _ in model.launch_times(node, cost.work, cost.traffic)
        for _ in range(launch.count)
    ]
    for (kind, us), alike in groupby(listed):
        times = len(list(alike))
        yield "", f"{units.predicted_us(us)} on the GPU{f' x{times}' if times > 1 else ''}, timed as {kind}"
    yield "", f"{units.predicted_us(cost.host.total_us)} on the host"


def _host(packet: str, facts: Sequence[OpFacts]) -> Iterator[tuple[str, str]]:
    from optrace.cost.host import CLASS_OF
    from optrace.cost.profiles import pricing

    kind = "view" if all(one.is_view for one in facts) else CLASS_OF.get(packet)
    host = pricing().host
    if kind is not None:
        yield "host", f"dispatched as {kind}: {host.dispatch_of(kind):g} us on {host.name}"
    else:
        yield "host", f"dispatched by the kind of its kernels, on {host.name}"


def _told(function: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """Where a function stands, and the first sentence of what it says of itself."""
    doc = inspect.getdoc(function)
    if doc:
        yield "", doc.partition("\n\n")[0].replace("\n", " ")
    file = Path(inspect.getsourcefile(function) or "").resolve()
    root = Path(optrace.__file__).resolve().parent.parent
    yield "", f"{file.relative_to(root)}:{inspect.getsourcelines(function)[1]}"
