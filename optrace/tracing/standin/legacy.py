# torch leaves these functions untyped:
# mypy: disable-error-code="no-untyped-call"
"""`torch.cuda.FloatTensor` and its kin: constructors of older programs, which ask the driver."""

from __future__ import annotations

from typing import Any

import torch

from optrace.tracing.standin.patches import Patch

DTYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}


class _Kind(type):
    """The type of such a constructor: what it makes, and what counts as an instance."""

    dtype: torch.dtype

    def __call__(cls, *args: Any) -> Any:
        given = args[0] if len(args) == 1 else None
        if isinstance(given, torch.Tensor):
            return given.to("cuda", cls.dtype)
        if isinstance(given, (list, tuple)) and not isinstance(given, torch.Size):
            return torch.tensor(given, dtype=cls.dtype, device="cuda")
        return torch.empty(given if isinstance(given, torch.Size) else args, dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype


def patches() -> list[Patch]:
    """A row for each constructor."""
    return [
        Patch(
            torch.cuda,
            name,
            _Kind(name, (), {"dtype": dtype, "__module__": "torch.cuda"}),
            "the driver is asked",
        )
        for name, dtype in DTYPES.items()
    ]
