"""Frozen facts about calls and tensors, free of torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, TypeAlias

Phase = Literal["forward", "backward", "optimizer", "other"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer", "other")

#: Bytes of one element. Sub-byte dtypes are kept by torch one a byte or packed by the caller.
DTYPE_BYTES: Mapping[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    "qint8": 1,
    "quint8": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "complex32": 4,
    "int32": 4,
    "uint32": 4,
    "qint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """One tensor of the run: its layout and where its bytes lie.

    ``stride`` and ``offset`` count elements; ``storage`` numbers untyped storages by first appearance
    (equal numbers alias; -1: the tensor has none, as a sparse one); ``id`` numbers tensor objects.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str
    storage: int
    storage_bytes: int
    offset: int
    id: int

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPE_BYTES.get(self.dtype, 1)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the distinct elements that the tensor shows: a stride-0 dimension counts once, and
        overlapping windows count the storage they span."""
        return _distinct_elements(self.shape, self.stride) * self.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Row-major without gaps, in torch's sense (dimensions of size 1 may have any stride)."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != expected:
                return 0 in self.shape
            expected *= size
        return True

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@lru_cache(maxsize=4096)
def _distinct_elements(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements of a layout, as ``TensorMeta.nbytes`` counts them."""
    if 0 in shape:
        return 0
    distinct, span = 1, 1
    for size, step in zip(shape, stride, strict=True):
        if step:
            distinct *= size
            span += (size - 1) * abs(step)
    return min(distinct, span)


#: What an argument can be: a tensor, a plain value, or a list of those. Dtypes, layouts, memory formats and
#: devices are kept by name (``"torch.bfloat16"``, ``"torch.strided"``, ``"cuda:0"``); None is an absent optional.
Value: TypeAlias = "TensorMeta | bool | int | float | complex | str | tuple[Value, ...] | None"


def tensors_in(value: Value) -> Iterator[TensorMeta]:
    """The tensors of an argument in order of appearance, those in lists included."""
    if isinstance(value, TensorMeta):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from tensors_in(item)


@dataclass(frozen=True, slots=True)
class OpFacts:
    """What the dispatcher's schema says of an overload.

    ``is_view``: an output is declared to share memory with an input that the op does not write.
    ``mutates``: names of the arguments whose alias info says "written".
    ``out_args``: those of them that are keyword-only, so written without being read (``out=``).
    ``tags``: torch's own tags (``pointwise``, ``data_dependent_output``, ...).
    """

    name: str
    is_view: bool = False
    mutates: tuple[str, ...] = ()
    out_args: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    arg_names: tuple[str, ...] = ()
    composite: bool = False

    @property
    def packet(self) -> str:
        """``aten.add`` of ``aten.add.Tensor``."""
        return self.name.rpartition(".")[0]

    @property
    def label(self) -> str:
        """``add`` of ``aten.add.Tensor``: the name people say."""
        namespace, _, rest = self.name.partition(".")
        name = rest.rpartition(".")[0] or rest
        return name if namespace == "aten" else f"{namespace}.{name}"


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of Python; ``user``: it is the user's own code, not an installed library's."""

    file: str
    line: int
    function: str
    user: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Source:
    """Frames of a call, innermost first, down to and including the innermost frame of the user's code."""

    frames: tuple[Frame, ...] = ()

    @property
    def line(self) -> Frame | None:
        """The innermost frame of the user's own code."""
        return next((frame for frame in self.frames if frame.user), None)


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """The ``call``-th call (from 1) of the module at ``path`` (``GPT.blocks.0.mlp``), of class ``cls``."""

    path: str
    cls: str
    call: int


@dataclass(frozen=True, slots=True)
class Storage:
    """An untyped storage. ``kind`` is ``parameter``, ``buffer``, ``gradient``, ``optimizer state``,
    ``pinned`` (memory of the host) or empty; ``name`` its dotted name where it has one."""

    nbytes: int
    device: str
    kind: str = ""
    name: str = ""


MarkKind = Literal["clock", "synchronize", "step", "run"]


@dataclass(frozen=True, slots=True)
class Mark:
    """What happened between two calls: the program read a ``clock``, waited for the device (``synchronize``) or began a
    ``step`` that it marks; or it was ``run``, once for each of the steps that were asked for. ``call`` is the number of
    the call that came next; ``frame`` the user's line."""

    kind: MarkKind
    call: int
    frame: Frame | None = None


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """How a graph was recorded. ``incomplete`` lists why calls may be missing; empty is a whole trace.

    ``python_loop_us`` is a turn of the reference loop on the machine that traced, ``tail_us`` what passed on the host
    between the last call and the end of the run, both None where they were not timed.
    ``float32_matmul`` and ``float32_convolution`` are torch's precisions of float32 products and of cuDNN's float32
    convolutions (``highest``: TF32 is off; empty: not known, so torch's defaults, off for products only).
    """

    program: str = ""
    mode: str = "fake"
    torch: str = ""
    gpu: str = ""
    steps: int = 1
    python_loop_us: float | None = None
    tail_us: float | None = None
    float32_matmul: str = ""
    float32_convolution: str = ""
    notes: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.incomplete


@dataclass(frozen=True, slots=True)
class OpNode:
    """One ATen call with everything that was recorded of it; made from the columns on demand.

    ``inputs`` and ``outputs`` are the tensors of ``args``, ``kwargs`` and ``out`` in order of appearance;
    ``writes[i]`` says that the op writes ``inputs[i]``, ``reads[i]`` that it may read it. ``autograd``: the
    call made a node of the autograd graph. ``python_us``: what passed on the host between the call before and this
    one (the program's Python, autograd; not optrace), on the machine that traced; None where it was not timed.
    """

    id: int
    op: str
    facts: OpFacts
    args: tuple[Value, ...]
    kwargs: Mapping[str, Value]
    out: Value
    inputs: tuple[TensorMeta, ...]
    outputs: tuple[TensorMeta, ...]
    writes: tuple[bool, ...]
    reads: tuple[bool, ...]
    module: ModuleCall | None = None
    source: Source = field(default_factory=Source)
    phase: Phase = "other"
    stream: int = 0
    autograd: bool = False
    python_us: float | None = None
    freed: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """As ``OpFacts.label``."""
        return self.facts.label

    @property
    def is_view(self) -> bool:
        """The call writes nothing and each of its outputs is made of an input's bytes."""
        if any(self.writes) or not self.outputs:
            return False
        given = {tensor.storage for tensor in self.inputs} - {-1}
        return self.facts.is_view or all(tensor.storage in given for tensor in self.outputs)

    def arg(self, name: str, default: Value = None) -> Value:
        """An argument by its schema name, wherever the caller put it."""
        if name in self.kwargs:
            return self.kwargs[name]
        try:
            position = self.facts.arg_names.index(name)
        except ValueError:
            return default
        return self.args[position] if position < len(self.args) else default

    def tensor(self, name: str) -> TensorMeta:
        """A tensor argument by its schema name. Raises ``TypeError`` if it is none."""
        value = self.arg(name)
        if not isinstance(value, TensorMeta):
            raise TypeError(f"{self.op}: argument {name!r} is {value!r}, not a tensor")
        return value

    def tensors(self, name: str) -> tuple[TensorMeta, ...]:
        """The tensors of a list argument by its schema name; absent ones left out."""
        return tuple(tensors_in(self.arg(name)))
