"""What a trace says of a call, whatever tool wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

from optrace.graph import ModuleCall, Phase, Source
from optrace.graph.measured import LaunchKind


class TraceFileError(ValueError):
    """The data is no trace that can be read. The message says why."""


@dataclass(frozen=True, slots=True)
class SeenTensor:
    """``dtype`` and ``device`` are empty and ``storage`` is None where the trace does not say."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str = ""
    device: str = ""
    storage: int | None = None
    offset: int = 0


#: Elements that a tensor may span: what torch can still address, in the widest type.
_MOST = 1 << 58


def checked(tensor: SeenTensor) -> SeenTensor:
    """The tensor as it is. Raises ``TraceFileError`` for one that there cannot be."""
    if len(tensor.shape) != len(tensor.stride) or not all(
        type(n) is int and n >= 0 for n in (*tensor.shape, *tensor.stride, tensor.offset)
    ):
        raise TraceFileError(
            f"it holds a tensor of shape {list(tensor.shape)}, strides {list(tensor.stride)}, offset {tensor.offset}"
        )
    span = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride, strict=True))
    if max(prod(tensor.shape), span + tensor.offset) > _MOST:
        raise TraceFileError(f"it holds a tensor larger than any memory, of shape {list(tensor.shape)}")
    return tensor


#: An argument. Its plain values are as the trace has them; ``Unknown`` where it has none.
SeenValue: TypeAlias = "SeenTensor | bool | int | float | str | tuple[SeenValue, ...] | None"


@dataclass(slots=True)
class SeenLaunch:
    """A launch on the device, microseconds on the trace's clock; ``nbytes`` of a copy or a fill, where it is said."""

    kind: LaunchKind
    name: str
    stream: int
    start_us: float
    end_us: float
    issued_us: float | None
    nbytes: int | None = None


@dataclass(slots=True)
class SeenCall:
    """A call: ``op`` is its packet (``aten.add``), ``overload`` is None where the trace does not say; ``outputs``
    is None where it does not."""

    op: str
    overload: str | None
    args: tuple[SeenValue, ...]
    outputs: tuple[SeenTensor, ...] | None = None
    phase: Phase = "forward"
    module: ModuleCall | None = None
    source: Source = field(default_factory=Source)
    autograd: bool = False
    host_us: tuple[float, float] | None = None
    launches: list[SeenLaunch] = field(default_factory=list)


@dataclass(slots=True)
class SeenRun:
    """What a trace holds. ``kind``: what wrote it; ``device``: the GPU's name, empty where there is none;
    ``step_starts``: by number, the calls that its steps begin with, empty where it marks none; ``timed``: it has times;
    ``left_out``: what of it is in no call."""

    kind: str
    calls: Sequence[SeenCall]
    device: str = ""
    step_starts: Sequence[int] = ()
    timed: bool = False
    unplaced: Sequence[SeenLaunch] = ()
    notes: Sequence[str] = ()
    left_out: Sequence[str] = ()
