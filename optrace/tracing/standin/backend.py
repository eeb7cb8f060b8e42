# signatures are those of torch
# torch leaves these functions untyped:
# mypy: disable-error-code="no-untyped-call"
"""The PrivateUse1 backend behind the pretended GPU: registered once in a process, when first needed.

torch lets a backend be written in Python (`_setup_privateuseone_for_python_backend`): a device guard and hooks that
need no driver. With them the dispatcher, autograd and the optimizers accept tensors of the device; FakeTensorMode
computes shapes. Nothing here is undone when a trace ends: the backend only ever concerns its own device.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.utils import backend_registration

from optrace.tracing.standin.device import BACKEND


class BackendModule:
    """What torch asks of `torch.<backend>`; a single device, always ready."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Fake tensors hold no random values; there is nothing to seed."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


class _Pending(Exception):
    """Raised and caught to take the place of an exception that is passing."""


def _device_type() -> Any:
    """The type of the device, for torch's device guard.

    Autograd asks this from a destructor while an exception raised in Python passes through it, and the process ends
    if the answer fails. Python returns no result while an exception is pending; the one raised here takes its place
    and is caught. `backward.patches` puts the original back.
    """
    try:
        raise _Pending
    except _Pending:
        return torch._C._autograd.DeviceType.PrivateUse1


class DeviceGuard(torch._C._acc.DeviceGuard):
    """A guard for the device and its only stream; torch implements all but the device's type."""

    def __init__(self) -> None:
        super().__init__()
        # On the instance: only there does the look-up succeed while an exception is pending.
        self.type_ = _device_type  # type: ignore[method-assign]  # see above


@cache
def register() -> None:
    """Make the backend exist in this process (idempotent).

    Raises RuntimeError if another package has taken torch's only PrivateUse1 slot.
    """
    taken = torch._C._get_privateuse1_backend_name()
    if taken != "privateuseone":
        raise RuntimeError(
            f"cannot stand in for a GPU: the PrivateUse1 backend of this process already belongs to '{taken}'"
        )
    backend_registration._setup_privateuseone_for_python_backend(
        BACKEND, backend_module=BackendModule(), device_guard=DeviceGuard()
    )
