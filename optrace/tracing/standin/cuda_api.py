"""`torch.cuda` as the chosen GPU would answer it."""

from __future__ import annotations

from typing import Any

import torch

from optrace.tracing.standin.device import StandinDevice
from optrace.tracing.standin.patches import Patch


def patches(device: StandinDevice) -> list[Patch]:
    """The rows for `torch.cuda`."""

    def is_available() -> bool:
        return True

    def is_initialized() -> bool:
        return True

    def device_count() -> int:
        return 1

    def current_device() -> int:
        return 0

    def _lazy_init() -> None:
        return None

    def is_current_stream_capturing() -> bool:
        return False

    def synchronize(device: Any = None) -> None:
        return None

    return [
        Patch(torch.cuda, f.__name__, f, "there is no driver to ask")
        for f in (
            is_available,
            is_initialized,
            device_count,
            current_device,
            _lazy_init,
            is_current_stream_capturing,
            synchronize,
        )
    ]
