"""What a call makes the GPU do, before any hardware number: launches, bytes touched, arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from optrace.graph import TensorMeta

#: How a call's kernels touch memory and which unit does their math: what device time depends on.
KernelKind = Literal[
    "none",
    "elementwise",
    "reduction",
    "gather",
    "transpose",
    "foreach",
    "matmul",
    "convolution",
    "attention",
    "copy",
    "other",
]

#: Kinds whose arithmetic runs in matrix units.
MATRIX_KINDS = frozenset({"matmul", "convolution", "attention"})

#: Where a figure comes from: a rule for this op, the schema's default, a measurement, or nowhere.
CostSource = Literal["rule", "schema", "measured", "unknown"]


@dataclass(frozen=True, slots=True)
class Access:
    """``nbytes`` of a tensor that a call touches in device memory, each byte once.

    ``scattered`` counts touches of single elements in no order (atomics of a scatter): each moves a sector.
    """

    tensor: TensorMeta
    nbytes: int
    scattered: int = 0


#: What a pass touches: an operand, or a temporary by its place in ``Work.temporaries``.
Operand = Access | int


@dataclass(frozen=True, slots=True)
class Pass:
    """One kernel over its operands, or one copy: what it reads and, side by side, writes. ``is_copy``: the copy engine
    does it, no kernel. ``is_product``: it is the matrix product itself, whose tiles read operands in common.
    ``times``: so often, one after the other."""

    reads: tuple[Operand, ...] = ()
    writes: tuple[Operand, ...] = ()
    is_copy: bool = False
    is_product: bool = False
    times: int = 1


@dataclass(frozen=True, slots=True)
class Work:
    """What one call makes the GPU do. None is "not known", zero "known to be free".

    ``flops`` is all arithmetic (one an element for a pointwise op, whatever the function);
    ``matmul_flops`` is 2 x multiply-adds of matmuls, convolutions and attention. ``math_dtype`` is what the
    arithmetic is done in. ``host_wait``: the host waits until the device has run the call.

    ``reads`` and ``writes`` hold each operand once. What a call moves besides stands apart: ``rereads``, operand
    bytes that a kernel reads again, tile by tile, because they have left the L2 meanwhile; ``scratch``, the bytes
    of each temporary (a copy in another layout, split-K partial sums), written once and read once within the
    call, in order of use; ``reserved``, bytes that the call allocates besides ``allocated`` temporaries.
    ``spilled``: local memory to which the threads that run at once spill registers; it lies where it lay before.
    ``passes`` says which kernel touches what, where that does not follow from the above (``cost/passes.py``).
    """

    kernels: int | None
    memcpys: int = 0
    memsets: int = 0
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    flops: int | None = 0
    matmul_flops: int | None = 0
    kind: KernelKind = "other"
    math_dtype: str = "float32"
    host_wait: bool = False
    source: CostSource = "schema"
    rereads: tuple[Access, ...] = ()
    scratch: tuple[int, ...] = ()
    reserved: int = 0
    spilled: int = 0
    passes: tuple[Pass, ...] = ()

    @property
    def temporaries(self) -> tuple[int, ...]:
        """Bytes of all that the call's kernels write besides its results: ``scratch``, then what they spill."""
        return (*self.scratch, self.spilled) if self.spilled else self.scratch

    @property
    def launches(self) -> int | None:
        """Kernels, copies and memsets."""
        return None if self.kernels is None else self.kernels + self.memcpys + self.memsets

    @property
    def allocated(self) -> tuple[int, ...]:
        """Bytes of each temporary that comes from the caching allocator. cuBLAS lays its own into a workspace that
        it keeps."""
        own = () if self.kind == "matmul" else self.scratch
        return (*own, self.reserved) if self.reserved else own

    @property
    def tensor_bytes(self) -> int:
        """Bytes that the touched tensors hold, as if there were no cache."""
        return sum(access.nbytes for access in self.reads) + sum(access.nbytes for access in self.writes)


#: A call that launches nothing.
FREE = Work(kernels=0, kind="none")
