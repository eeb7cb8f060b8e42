"""A graph's rows as numpy arrays, for what looks at a million calls at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Columns:
    """Copies of a graph's columns; a call's operands are rows ``operand_start[call]`` to ``operand_start[call + 1]`` of
    ``operands``, which are tensors, and so with its outputs.

    ``phase`` numbers ``PHASES``; ``module`` is a row of the graph's module calls, or -1; ``python_us`` is NaN where it was not timed; ``tensor_storage`` is -1 where a tensor
    has none; ``storage_on_device`` is false for memory of the host; ``freed_storage`` is gone after call
    ``freed_after`` (-1: before the first), in time order.
    """

    op: Ints
    template: Ints
    phase: Ints
    module: Ints
    stream: Ints
    autograd: Bools
    python_us: Floats
    operand_start: Ints
    operands: Ints
    operand_flags: Ints
    output_start: Ints
    outputs: Ints
    tensor_layout: Ints
    tensor_storage: Ints
    tensor_offset: Ints
    storage_bytes: Ints
    storage_on_device: Bools
    freed_storage: Ints
    freed_after: Ints

    @property
    def calls(self) -> int:
        return len(self.op)
