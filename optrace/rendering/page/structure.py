"""What was recorded, as columns: calls with their places and texts, dependences, storages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from optrace import units
from optrace.cost.peak import USES, uses_of
from optrace.graph import Frame, OpGraph
from optrace.graph.nouns import PHASES
from optrace.rendering.details import plain_arguments
from optrace.rendering.page.columns import Packer, Texts
from optrace.rendering.page.tree import tree
from optrace.rendering.places import PHASE_NAMES
from optrace.report import Report

#: Lists of tensors in a call's text, before it says how many more there are.
_TENSORS = 6

#: Source files past this size are not copied into the page: nobody wrote them by hand.
_SOURCE_BYTES = 1 << 20

#: Dependences by kind.
_EDGE_KINDS = ("data", "order")


def structure(report: Report, pack: Packer) -> dict[str, Any]:
    """The record's part of the page's data."""
    graph = report.graph
    lines = _Lines()
    return {
        "calls": len(graph),
        "ops": [{"name": facts.name, "label": facts.label} for facts in graph.ops],
        "phases": [PHASE_NAMES[phase] for phase in PHASES],
        **_calls(graph, pack, lines),
        "lines": lines.rows,
        "edges": _edges(graph, pack),
        "tree": tree(report, pack),
        "storages": _storages(report, pack),
        "sources": _sources({file for file, _, _ in lines.rows}),
    }


class _Lines:
    """Distinct lines of the user's code."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int, str], int] = {}

    def add(self, frame: Frame | None) -> int:
        if frame is None:
            return -1
        return self._numbers.setdefault((frame.file, frame.line, frame.function), len(self._numbers))

    @property
    def rows(self) -> list[tuple[str, int, str]]:
        return list(self._numbers)


def _calls(graph: OpGraph, pack: Packer, lines: _Lines) -> dict[str, Any]:
    """A row a call; modules by path, since a page opens a module and not one call of it."""
    number_of = {facts.name: number for number, facts in enumerate(graph.ops)}
    modules: dict[str, int] = {}
    classes: list[str] = []
    module_rows = []
    for call in graph.module_calls.rows:
        if call.path not in modules:
            modules[call.path] = len(modules)
            classes.append(call.cls)
        module_rows.append(modules[call.path])
    line_rows = [lines.add(source.line) for source in graph.sources.rows]
    inputs, outputs, arguments = Texts(), Texts(), Texts()
    shown = _Shown(graph)
    columns, calls = graph.columns(), range(len(graph))
    return {
        "modules": [{"path": path, "cls": cls} for path, cls in zip(modules, classes, strict=True)],
        "op": pack.add("Uint32", (number_of[graph.ops[row].name] for row in columns.op.tolist())),
        "phase": pack.add("Uint8", columns.phase),
        "stream": pack.add("Uint16", columns.stream),
        "module": pack.add("Int32", np.array([*module_rows, -1])[columns.module]),
        "line": pack.add("Int32", (line_rows[graph.source_of(call)] for call in calls)),
        "input": pack.add("Uint32", (inputs.add(shown.tensors(graph.operands(call))) for call in calls)),
        "output": pack.add("Uint32", (outputs.add(shown.tensors(graph.outputs(call))) for call in calls)),
        "argument": pack.add("Uint32", (arguments.add(shown.arguments(call)) for call in calls)),
        "inputs": inputs.rows,
        "outputs": outputs.rows,
        "arguments": arguments.rows,
    }


class _Shown:
    """A call's tensors and plain arguments as text, made once for each layout and each list of arguments."""

    def __init__(self, graph: OpGraph) -> None:
        self._graph = graph
        self._layouts: dict[int, str] = {}
        self._arguments: dict[tuple[int, int], str] = {}

    def tensors(self, tensors: Sequence[int]) -> str:
        """Shapes that go in or come out."""
        shown = [self._tensor(tensor) for tensor in tensors[:_TENSORS]]
        if len(tensors) > _TENSORS:
            shown.append(f"{len(tensors) - _TENSORS:,} more")
        return ", ".join(shown)

    def _tensor(self, tensor: int) -> str:
        layout = self._graph.tensor_layout(tensor)
        text = self._layouts.get(layout)
        if text is None:
            text = self._layouts[layout] = units.tensor(self._graph.tensor(tensor))
        return text

    def arguments(self, call: int) -> str:
        key = self._graph.op_of(call), self._graph.template_of(call)
        text = self._arguments.get(key)
        if text is None:
            text = next(plain_arguments(self._graph[call]), "").removeprefix("with ")
            self._arguments[key] = text
        return text


def _edges(graph: OpGraph, pack: Packer) -> dict[str, Any]:
    edges = graph.edges
    sizes: dict[int, int] = {}
    for edge in edges:
        layout = graph.tensor_layout(edge.tensor)
        if layout not in sizes:
            sizes[layout] = graph.tensor(edge.tensor).nbytes
    return {
        "src": pack.add("Uint32", (edge.src for edge in edges)),
        "dst": pack.add("Uint32", (edge.dst for edge in edges)),
        "kind": pack.add("Uint8", (_EDGE_KINDS.index(edge.kind) for edge in edges)),
        "bytes": pack.add("Float64", (sizes[graph.tensor_layout(edge.tensor)] for edge in edges)),
    }


def _storages(report: Report, pack: Packer) -> dict[str, Any]:
    """Device storages: bytes of their blocks, the call that made each (-1: it was there before), the last call that
    it outlived (``calls``: it is there at the end), what it is for."""
    graph, memory = report.graph, report.priced.memory
    calls = len(graph)
    columns = graph.columns()
    freed = dict(zip(columns.freed_storage.tolist(), columns.freed_after.tolist(), strict=True))
    rows = memory.placed.tolist()
    uses = uses_of(graph, rows, memory.born)
    names = {row: graph.storages[storage].name for row, storage in enumerate(rows)}
    return {
        "uses": USES,
        "bytes": pack.add("Float64", memory.block_bytes[rows].tolist()),
        "born": pack.add("Int32", memory.born[rows].tolist()),
        "died": pack.add("Int32", (freed.get(storage, calls) for storage in rows)),
        "use": pack.add("Uint8", (USES.index(uses[storage]) for storage in rows)),
        "names": {row: name for row, name in names.items() if name},
    }


def _sources(files: set[str]) -> dict[str, str]:
    """The text of the user's files, where they can still be read."""
    texts = {}
    for file in sorted(files):
        path = Path(file)
        # A record that somebody else made may name any file: only Python is copied.
        if path.suffix != ".py":
            continue
        try:
            if path.is_file() and path.stat().st_size <= _SOURCE_BYTES:
                texts[file] = path.read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError):
            continue
    return texts
