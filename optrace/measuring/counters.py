"""Bytes through HBM of each kernel of a step by hardware counters: Nsight Compute around a child process that runs the
step once between ``cudaProfilerStart`` and ``cudaProfilerStop``.

Caches and clocks are left as they are: what a kernel finds in the L2 is what the kernels before it left there. The
command replays each kernel, so its own times are not those of the step.
"""

from __future__ import annotations

import csv
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

_READ, _WRITTEN, _NS = "dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum"

#: Units that Nsight Compute writes, in bytes and nanoseconds.
_UNITS = {
    "byte": 1.0,
    "Kbyte": 1e3,
    "Mbyte": 1e6,
    "Gbyte": 1e9,
    "ns": 1.0,
    "nsecond": 1.0,
    "us": 1e3,
    "usecond": 1e3,
    "ms": 1e6,
    "msecond": 1e6,
}

#: Where toolkits put the command when it is not on the PATH.
_PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/ncu")


class CountersError(RuntimeError):
    """The counters cannot be read here."""


@dataclass(frozen=True, slots=True)
class CountedKernel:
    """One kernel: bytes read from and written to HBM, and the nanoseconds of its replay."""

    name: str
    read: int
    written: int
    ns: float


@contextmanager
def counted_step() -> Iterator[None]:
    """What the child does around the step that is counted."""
    torch.cuda.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    try:
        yield
        torch.cuda.synchronize()
    finally:
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]  # as above


def count(child: Sequence[str], time_limit_s: float) -> list[CountedKernel]:
    """Run ``child`` under Nsight Compute: its counted step's kernels in launch order.

    Raises ``CountersError`` where there is no such command, no permission, or no answer in time.
    """
    program = shutil.which("ncu") or next((place for place in _PLACES if os.access(place, os.X_OK)), None)
    if program is None:
        raise CountersError("counters need Nsight Compute, and there is no ncu on the PATH")
    command = [
        *(program, "--profile-from-start", "off", "--cache-control", "none", "--clock-control", "none"),
        *("--metrics", f"{_READ},{_WRITTEN},{_NS}", "--csv"),
        *child,
    ]
    # A session of its own: what ncu starts ends with it.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=time_limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise CountersError(f"Nsight Compute took longer than {time_limit_s:g} s (--limit)") from None
    if "ERR_NVGPUCTRPERM" in out + err:
        raise CountersError(
            "the driver lets nobody but root read the GPU's counters (ERR_NVGPUCTRPERM): "
            "https://developer.nvidia.com/ERR_NVGPUCTRPERM says how to change that"
        )
    if process.returncode:
        raise CountersError(
            f"Nsight Compute ended with exit status {process.returncode}: {_last(err or out)}"
        )
    return read_counters(out)


def read_counters(text: str) -> list[CountedKernel]:
    """Nsight Compute's CSV (a line a kernel and metric) by kernel. Raises ``CountersError`` where it has none."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    names: dict[str, str] = {}
    figures: dict[str, dict[str, float]] = {}
    try:
        for row in csv.DictReader(lines):
            number = row["ID"]
            names[number] = row["Kernel Name"]
            value = float(row["Metric Value"].replace(",", ""))
            figures.setdefault(number, {})[row["Metric Name"]] = value * _UNITS[row["Metric Unit"]]
        kernels = [
            CountedKernel(names[key], int(row[_READ]), int(row[_WRITTEN]), row[_NS])
            for key, row in figures.items()
        ]
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise CountersError(f"Nsight Compute's answer has another form than expected: {error!r}") from None
    if not kernels:
        raise CountersError(f"Nsight Compute counted no kernel: {_last(text)}")
    return kernels


def _last(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")
