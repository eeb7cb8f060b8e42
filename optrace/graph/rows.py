"""Rows of many calls, gathered to be appended to a graph's columns at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from optrace.graph.nouns import Storage

#: Of a call: op, template, source, module, phase, stream, whether autograd made a node, and the ends of its operands and
#: outputs.
CallRow: TypeAlias = tuple[int, int, int, int, int, int, bool, int, int]


@dataclass(slots=True)
class Rows:
    """What ``OpGraph.append_rows`` appends; beside ``calls``, each list as the graph's column of that name.

    The ends of operands and outputs count from the first of these rows. Tensors and storages that are new are numbered
    from those that the graph has.
    """

    calls: list[CallRow] = field(default_factory=list)
    operands: list[int] = field(default_factory=list)
    operand_flags: bytearray = field(default_factory=bytearray)
    outputs: list[int] = field(default_factory=list)
    tensor_layout: list[int] = field(default_factory=list)
    tensor_storage: list[int] = field(default_factory=list)
    tensor_offset: list[int] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    freed_storage: list[int] = field(default_factory=list)
    freed_after: list[int] = field(default_factory=list)
