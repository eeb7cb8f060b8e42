"""What the pretended GPU is, and how its name is translated between the user and torch.

The user says and sees `cuda`. Inside torch the device is a PrivateUse1 backend, because only such a backend can
dispatch, differentiate and optimize without a driver. `to_backend` and `to_user` are the two directions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

BACKEND = "standin"  # the name that PrivateUse1 gets in this process

META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class StandinDevice:
    """The facts that a program may ask a GPU for, and that torch chooses kernels by."""

    name: str = "NVIDIA H200"
    capability: tuple[int, int] = (9, 0)
    sm_count: int = 132
    memory_bytes: int = 150_109_880_320
    l2_bytes: int = 62_914_560


@cache
def to_backend(device: torch.device) -> torch.device:
    """`cuda` and `cuda:i` become the backend's device with the same index; others stay."""
    if device.type != "cuda":
        return device
    return torch.device(BACKEND) if device.index is None else torch.device(BACKEND, device.index)


@cache
def to_user(device: torch.device) -> torch.device:
    """The backend's device becomes `cuda` with the same index; others stay."""
    if device.type != BACKEND:
        return device
    return torch.device("cuda") if device.index is None else torch.device("cuda", device.index)


def parse(device: Any) -> Any:
    """The backend's device for anything that torch accepts as a device and that names a GPU.

    A bare integer means an accelerator index in torch, hence a GPU here. Everything else is handed back as it is,
    so that torch raises its own error for nonsense.
    """
    if isinstance(device, torch.device):
        return to_backend(device)
    if isinstance(device, str):
        return to_backend(torch.device(device)) if device.startswith("cuda") else device
    if isinstance(device, int) and not isinstance(device, bool):
        return torch.device(BACKEND, device)
    return device


def names_gpu(device: Any) -> bool:
    """Whether `device` (a device, a string, an index) means the pretended GPU."""
    parsed = parse(device)
    return isinstance(parsed, torch.device) and parsed.type == BACKEND


_active: list[StandinDevice] = []


def active_device() -> StandinDevice:
    """The GPU that is being pretended now; outside a stand-in, the default one."""
    return _active[-1] if _active else StandinDevice()


@contextmanager
def activated(device: StandinDevice) -> Iterator[None]:
    """Make `device` the one that kernels are chosen for."""
    _active.append(device)
    try:
        yield
    finally:
        _active.pop()
