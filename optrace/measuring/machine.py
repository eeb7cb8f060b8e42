"""What the program is measured on, and whether it has the GPU to itself: torch's properties and ``nvidia-smi``."""

from __future__ import annotations

import os
import platform
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

#: Asked of ``nvidia-smi``; the last two are called ``clocks_throttle_reasons`` by drivers before 535.
_QUERY = (
    "utilization.gpu,clocks.sm,clocks.max.sm,power.draw,power.limit,temperature.gpu,driver_version,"
    "clocks_event_reasons.sw_power_cap,clocks_event_reasons.hw_slowdown,clocks_event_reasons.sw_thermal_slowdown"
)
_OLDER_QUERY = _QUERY.replace("clocks_event_reasons", "clocks_throttle_reasons")

#: A GPU that was this busy, in percent, before anything was run has somebody else's work on it.
_BUSY_PERCENT = 5.0


@dataclass(frozen=True, slots=True)
class GpuState:
    """What the driver says of the GPU; None where it does not."""

    utilization_percent: float | None
    sm_mhz: float | None
    sm_max_mhz: float | None
    power_w: float | None
    power_limit_w: float | None
    temperature_c: float | None
    driver: str | None
    throttled_by: tuple[str, ...]


def machine_line() -> dict[str, Any]:
    """The first line of a record."""
    properties = torch.cuda.get_device_properties()
    return {
        "device": properties.name,
        "torch": str(torch.__version__),
        "host": f"{processor()} ({os.cpu_count()} cores)",
        "cuda": torch.version.cuda,
        "sm_count": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
    }


def processor() -> str:
    """The processor's name where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def gpu_state(time_limit_s: float = 10.0) -> GpuState | None:
    """The state now; None where ``nvidia-smi`` is missing, fails or does not answer in time."""
    return _answer([*_command(_QUERY)], time_limit_s) or _answer([*_command(_OLDER_QUERY)], time_limit_s)


def _command(query: str) -> list[str]:
    return ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", f"--id={_identity()}"]


def _identity() -> str:
    """The current device as the driver knows it, whatever ``CUDA_VISIBLE_DEVICES`` made of its number."""
    uuid = getattr(torch.cuda.get_device_properties(), "uuid", None)
    return f"GPU-{uuid}" if uuid else str(torch.cuda.current_device())


def _answer(command: list[str], time_limit_s: float) -> GpuState | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=time_limit_s, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return read_state(done.stdout)


def read_state(text: str) -> GpuState | None:
    """The first line of ``nvidia-smi``'s answer; None where it is none."""
    fields = [field.strip() for field in text.splitlines()[0].split(",")] if text.strip() else []
    if len(fields) != len(_QUERY.split(",")):
        return None
    busy, clock, fastest, power, most, temperature = map(_number, fields[:6])
    reasons = ("its power limit", "a hardware slowdown", "its temperature")
    active = tuple(reason for reason, field in zip(reasons, fields[7:], strict=True) if field == "Active")
    return GpuState(busy, clock, fastest, power, most, temperature, fields[6] or None, active)


def _number(field: str) -> float | None:
    try:
        return float(field)
    except ValueError:
        return None


@contextmanager
def state_under_load(found: list[GpuState], time_limit_s: float = 10.0) -> Iterator[Callable[[], bool]]:
    """Ask while the caller keeps the GPU busy: what it yields says whether the answer is still awaited."""

    def ask() -> None:
        state = gpu_state(time_limit_s)
        if state is not None:
            found.append(state)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    yield thread.is_alive
    thread.join(2 * time_limit_s)


def remarks_before(state: GpuState | None) -> list[str]:
    """What there is to say of the GPU before anything was run on it."""
    if state is None:
        return ["nvidia-smi gave no answer: whether others use this GPU, and its clock, are not known"]
    busy = state.utilization_percent
    if busy is not None and busy > _BUSY_PERCENT:
        return [f"the GPU was {busy:.0f} % busy before anything was run on it: others' work is in the times"]
    return []


def remarks_under_load(state: GpuState | None) -> list[str]:
    """What there is to say of its clock while the program ran."""
    if state is None or not state.throttled_by:
        return []
    clock = f", {state.sm_mhz:.0f} of {state.sm_max_mhz:.0f} MHz" if state.sm_mhz and state.sm_max_mhz else ""
    return [f"the GPU's clock was held down by {' and '.join(state.throttled_by)}{clock}: times are longer"]
