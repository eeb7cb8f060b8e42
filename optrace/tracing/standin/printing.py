# torch leaves these functions untyped:
# mypy: disable-error-code="no-untyped-call"
"""Tensors that a program prints.

A tensor of the GPU is printed by calls on it: comparisons, a selection, a read of each number. torch switches all modes
off meanwhile, and shows no contents of a fake tensor. Here the calls are made as any others, and what is known is shown.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, _tensor_str
from torch._subclasses.fake_tensor import FakeTensor

from optrace.tracing.standin.device import BACKEND
from optrace.tracing.standin.mode import StandInMode
from optrace.tracing.standin.patches import Patch
from optrace.tracing.standin.unknown import user_line

_PREFIX = "tensor("


def patches(mode: StandInMode) -> list[Patch]:
    """The row by which tensors of the GPU are printed."""
    without_contents = _tensor_str._str

    def _str(self: Tensor, *, tensor_contents: str | None = None) -> str:
        if tensor_contents is not None or not _is_printed(self):
            return str(without_contents(self, tensor_contents=tensor_contents))
        contents, is_known = _formatted(mode, self)
        return _labelled(self, contents) if is_known else str(without_contents(self))

    return [Patch(_tensor_str, "_str", _str, "torch prints with no mode on, and of fake tensors no contents")]


def _is_printed(tensor: Tensor) -> bool:
    return (
        isinstance(tensor, FakeTensor)
        and tensor.fake_device.type == BACKEND
        and tensor.layout is torch.strided
        and not tensor.is_nested
    )


def _formatted(mode: StandInMode, tensor: Tensor) -> tuple[str, bool]:
    """The contents as torch writes them, by calls that are recorded, and whether they are the tensor's: numbers that
    nobody knows are taken for zeros, which is kept as a guess."""
    guesses = mode.answers.guesses
    before = len(guesses)
    with torch.no_grad(), mode.answers.expecting("zero"):
        contents = _tensor_str._tensor_str(tensor, len(_PREFIX))
    is_known = len(guesses) == before
    if not is_known:
        del guesses[before:]
        mode.answers.note(
            "print",
            f"a tensor whose values follow from data is printed{user_line()}: by the calls that print zeros",
        )
    return contents, is_known


def _labelled(tensor: Tensor, contents: str) -> str:
    """Contents with what torch says of a tensor of the GPU."""
    said: list[Any] = [contents, f"device='{tensor.device}'"]
    if tensor.dtype not in (torch.get_default_dtype(), torch.int64, torch.bool, torch.complex64):
        said.append(f"dtype={tensor.dtype}")
    if tensor.grad_fn is not None:
        said.append(f"grad_fn=<{tensor.grad_fn.name()}>")
    elif tensor.requires_grad:
        said.append("requires_grad=True")
    text = f"{_PREFIX}{', '.join(said)})"
    return f"Parameter containing:\n{text}" if isinstance(tensor, torch.nn.Parameter) else text
