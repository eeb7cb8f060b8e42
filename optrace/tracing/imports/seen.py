"""What a trace says of a call, whatever tool wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from optrace.graph import ModuleCall, Phase, Source
from optrace.graph.measured import LaunchKind

#: C++ names of element types, as torch prints them.
DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "long int": "int64",
    "long": "int64",
    "long long": "int64",
    "__int64": "int64",
    "int": "int32",
    "short int": "int16",
    "short": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "unsigned short": "uint16",
    "unsigned int": "uint32",
    "bool": "bool",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "c10::complex<c10::Half>": "complex32",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz",
    "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
}


@dataclass(frozen=True, slots=True)
class SeenTensor:
    """``dtype`` and ``device`` are empty and ``storage`` is None where the trace does not say."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str = ""
    device: str = ""
    storage: int | None = None
    offset: int = 0


#: An argument. Its plain values are as the trace has them; ``Unknown`` where it has none.
SeenValue: TypeAlias = "SeenTensor | bool | int | float | str | tuple[SeenValue, ...] | None"


@dataclass(slots=True)
class SeenLaunch:
    """A launch on the device, microseconds on the trace's clock."""

    kind: LaunchKind
    name: str
    stream: int
    start_us: float
    end_us: float
    issued_us: float | None


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
    ``timed``: it has times."""

    kind: str
    calls: Sequence[SeenCall]
    device: str = ""
    steps: int = 1
    timed: bool = False
    unplaced: Sequence[SeenLaunch] = ()
    notes: Sequence[str] = ()
