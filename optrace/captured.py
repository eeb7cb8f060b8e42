"""Graphs that torch captured, priced by the model that prices a trace.

``from_fx`` takes a graph by itself; a ``Backend`` stands between Dynamo and the compiler, and says of each graph what
its eager calls cost and why it ended where it did.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Unpack

import torch
from torch import fx
from torch.export import ExportedProgram

from optrace.api import Trace, TraceOptions, trace
from optrace.report import Report
from optrace.tracing.fx import FxError, run_captured
from optrace.tracing.sources import shortened
from optrace.units import count, moved, predicted_us


def from_fx(module: fx.GraphModule | ExportedProgram, *inputs: Any, **options: Unpack[TraceOptions]) -> Trace:
    """Run a captured graph as eager code would run it, and return the finished trace.

    ``module`` comes from ``torch.export`` (the program itself will do), ``make_fx``, Dynamo, or a trace's
    ``to_fx()``. Without ``inputs`` its placeholders' ``meta["val"]`` say their shapes. Calls keep the lines
    (``stack_trace``) and modules (``nn_module_stack``) that the graph names. The graph and its inputs are left as they
    are. A graph captured on the CPU is priced as moved to the GPU. ``options`` are those of ``optrace.trace`` (``gpu``,
    ``host``, ``mode``, ``device``, ``assume``, ``dispatch_us``, ``launch_us``, ``bandwidth_tb``).

    Raises ``FxError`` (a ``ValueError``) for what is no graph and for inputs that are not as many as it takes, and as
    ``optrace.trace`` does.
    """
    captured, recorded = _graph_of(module), trace(**options)
    with recorded._session_of("fx graph") as session:
        run_captured(session, captured, inputs)
    return recorded


def _graph_of(module: object) -> fx.GraphModule:
    if isinstance(module, ExportedProgram):
        module = module.module()
    if not isinstance(module, fx.GraphModule):
        raise FxError(
            f"from_fx takes a torch.fx.GraphModule or an ExportedProgram, not {type(module).__name__}: capture it with "
            "torch.export.export or make_fx, or trace the program itself with optrace.trace"
        )
    return module


Price = Callable[[fx.GraphModule], Trace]


@dataclass(frozen=True)
class Capture:
    """A graph that Dynamo captured. ``ended``: why it ends before its function does; empty where it does not.
    ``place``: the user's line there. ``gradients``: they were on. ``code``: Dynamo's number of the code that was
    compiled, the same where it was compiled again (for other shapes, or another module's values)."""

    module: fx.GraphModule
    ended: str
    place: str
    gradients: bool
    code: int | None
    _price: Price = field(repr=False)

    @cached_property
    def trace(self) -> Trace:
        """The graph's calls, run eagerly and recorded; made when first asked for, outside of any compilation."""
        with torch.set_grad_enabled(self.gradients):
            return self._price(self.module)

    @cached_property
    def report(self) -> Report:
        """The price of the graph's calls."""
        return self.trace.report()


class Backend:
    """A ``torch.compile`` backend that keeps each captured graph, to be priced, and hands it on to a compiler.
    ``optrace.backend`` makes it.

    ``captures`` grows with each graph that Dynamo captures. ``str()`` of a backend is its ``beside()``.
    """

    def __init__(self, compiler: str, price: Price) -> None:
        self.captures: list[Capture] = []
        self._price = price
        self._compile = torch._dynamo.lookup_backend(compiler)

    def __call__(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Called by Dynamo with each graph that it captured."""
        ended = place = ""
        reason = getattr(module, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            ended = str(reason.reason).strip().partition("\n")[0]
            if ended.startswith("generic_jump"):
                ended = f"a branch depends on a tensor's value ({ended})"
            if reason.user_stack:
                line = reason.user_stack[-1]
                place = f"{shortened(line.filename)}:{line.lineno}"
        # A copy: compilers rewrite the graph that they are given.
        mine = fx.GraphModule(module, copy.deepcopy(module.graph))
        compiling = torch._guards.CompileContext.current_compile_id()
        code = None if compiling is None else compiling.frame_id
        self.captures.append(Capture(mine, ended, place, torch.is_grad_enabled(), code, self._price))
        compiled: Callable[..., Any] = self._compile(module, list(example_inputs))
        return compiled

    @property
    def breaks(self) -> tuple[Capture, ...]:
        """The graphs that end before their function does."""
        return tuple(capture for capture in self.captures if capture.ended)

    def beside(self, eager: Trace | None = None) -> str:
        """A table: each captured graph's eager price, where and why graphs broke, and beside it the ``eager`` trace of
        the same call. Inside ``optrace.trace`` a compiled function runs eagerly: that makes the trace.

        Only what Dynamo captures is in the graphs: of a training step the forward pass.
        """
        rows: list[tuple[str, ...]] = [_HEAD]
        for number, capture in enumerate(self.captures):
            rows.append((f"graph {number}", *_figures([capture.report])))
        rows.append(("captured", *_figures([capture.report for capture in self.captures])))
        if eager is not None:
            rows.append(("eager", *_figures([eager.report()])))
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
        lines = [
            "  ".join(
                f"{cell:{'<' if not column else '>'}{widths[column]}}" for column, cell in enumerate(row)
            )
            for row in rows
        ]
        return "\n".join([*lines, *self._remarks()])

    def _remarks(self) -> Iterator[str]:
        """Where and why graphs broke, and which are of code that was compiled before."""
        if not self.captures:
            yield "no graph was captured yet: call the compiled function first"
            return
        first: dict[int, int] = {}
        for number, capture in enumerate(self.captures):
            before = number if capture.code is None else first.setdefault(capture.code, number)
            if before != number:
                yield f"graph {number} is the code of graph {before} compiled again; the sum has both"
        for number, capture in enumerate(self.captures):
            if capture.ended:
                yield f"graph {number} breaks at {capture.place or 'an unknown line'}: {capture.ended}"
        if not self.breaks:
            yield "no graph breaks"

    def __str__(self) -> str:
        return self.beside()


_HEAD = ("", "calls", "launches", "HBM bytes", "device time", "wall time")


def _figures(reports: Sequence[Report]) -> tuple[str, ...]:
    """Sums over reports, as ``_HEAD`` names them; a sum that leaves something out says so."""
    partial = any(not report.complete for report in reports)
    mark = " (partial)" if partial else ""

    def total(name: str) -> float:
        return sum(report.totals[name].value for report in reports)

    return (
        str(sum(len(report.graph) for report in reports)),
        f"{count(total('launches'))}{mark}",
        f"{moved(total('hbm_bytes'))}{mark}",
        f"{predicted_us(total('device_us'))}{mark}",
        predicted_us(sum(report.timeline.wall_us for report in reports)),
    )


def backend(
    compiler: Literal["eager", "inductor"] | str = "inductor", **options: Unpack[TraceOptions]
) -> Backend:
    """A backend for ``torch.compile``: compiles with ``compiler``, and prices each graph that it is handed.

        backend = optrace.backend("inductor", gpu="h100")
        torch.compile(model, backend=backend)(x)
        print(backend)

    ``compiler`` is any backend that ``torch.compile`` knows by name. ``options`` are those of ``optrace.trace``, as
    ``from_fx`` takes them, for the runs that price the graphs. Raises as ``from_fx`` does, and torch's error for an
    unknown compiler.
    """
    trace(**options)  # what it raises is raised now, not at the first graph
    return Backend(compiler, lambda module: from_fx(module, **options))


__all__ = ["Backend", "Capture", "FxError", "backend", "from_fx"]
