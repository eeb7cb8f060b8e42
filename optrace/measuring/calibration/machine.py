"""What stands in the way of a calibration: other users of the GPU, clocks that are held down. And what it ran on."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

import torch

#: Reasons for a clock below the wanted one, as the driver's bits.
_THROTTLED = {
    0x4: "the power limit",
    0x8: "the hardware",
    0x20: "the driver, for heat",
    0x40: "the hardware, for heat",
    0x80: "a power brake",
}
#: Memory of others from which on the GPU counts as shared, bytes.
_OTHERS = 1 << 30
_PATIENCE_S = 5


def driver() -> str | None:
    """The driver's version; None where it cannot be asked."""
    answer = _ask("driver_version")
    return answer[0] if answer else None


def others_at_work() -> list[str]:
    """What says that somebody else uses the GPU. Asked before any work of ours."""
    found = []
    busy = _ask("utilization.gpu")
    if busy and busy[0].isdigit() and int(busy[0]) > 5:
        found.append(f"the GPU is busy ({busy[0]} % of the time): times will be too long")
    free, total = torch.cuda.mem_get_info()
    others = total - free - torch.cuda.memory_reserved()
    if others > _OTHERS:
        found.append(
            f"others hold {others / 2**30:.1f} GiB of the GPU's memory: if they work too, times will be too long"
        )
    return found


def throttled() -> list[str]:
    """What holds the clock down. Asked under load."""
    answer = _ask("clocks_throttle_reasons.active", "clocks.sm", "clocks.max.sm")
    if not answer or not answer[0].startswith("0x"):
        return []
    reasons = int(answer[0], 16)
    by = [what for bit, what in _THROTTLED.items() if reasons & bit]
    return (
        [f"the clock is held down by {' and '.join(by)} ({answer[1]} of {answer[2]} MHz)"]
        if by and len(answer) == 3
        else []
    )


def _ask(*fields: str) -> Sequence[str] | None:
    """The driver's tool, asked of the GPU that torch uses."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    command = [
        tool,
        f"--query-gpu={','.join(fields)}",
        "--format=csv,noheader,nounits",
        "-i",
        f"GPU-{properties.uuid}",
    ]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return [field.strip() for field in answer.stdout.splitlines()[0].split(",")] if answer.stdout else None
