# ruff: noqa: ARG001  # signatures are those of torch
# torch leaves these functions untyped:
# mypy: disable-error-code="no-untyped-call"
"""Numbers that go from Python to the GPU: `torch.tensor([1, 2], device="cuda")`, `x[[0, 2]]`, `x.new_tensor(3.0)`.

torch makes a tensor of them on the CPU and copies it to the device with all modes off, so that a recorder sees one
`lift_fresh` of a tensor on the GPU. Under FakeTensorMode it copies with the modes on, to keep the driver out. Here
is no driver to keep out: torch goes CUDA's way, and the kernels that this takes of the backend are these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from optrace.tracing.standin.device import BACKEND, META
from optrace.tracing.standin.values import Values

_owners: list[tuple[FakeTensorMode, Values]] = []


@contextmanager
def into(mode: FakeTensorMode, values: Values) -> Iterator[None]:
    """Let `mode` own the tensors that the kernels make, and `values` their contents."""
    _owners.append((mode, values))
    try:
        yield
    finally:
        _owners.pop()


def empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, **options: Any
) -> FakeTensor:
    """`aten::empty_strided` on the backend."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        meta = torch.empty_strided(size, stride, dtype=dtype, device=META)
        return FakeTensor(_owners[-1][0], meta, torch.device(BACKEND, 0))


def copy_from(source: Tensor, target: FakeTensor, non_blocking: bool = False) -> FakeTensor:
    """`aten::_copy_from` from the CPU to the backend."""
    _, values = _owners[-1]
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        if source.numel() <= values.limit:
            values.put(target, source)
    return target


KERNELS = {"empty_strided": empty_strided, "_copy_from": copy_from}
