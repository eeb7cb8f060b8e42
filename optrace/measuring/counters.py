"""Bytes through HBM of each kernel of a step by hardware counters: Nsight Compute around a child process that runs the
step once between ``cudaProfilerStart`` and ``cudaProfilerStop``.

Caches and clocks are left as they are: what a kernel finds in the L2 is what the kernels before it left there. The
command stops the GPU around each kernel, which takes milliseconds: its own times are not those of the step, and of a
step with very many launches only the first ones are counted before the time is over.
"""

from __future__ import annotations

import csv
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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

#: What Nsight Compute writes as it begins with a kernel, and the child where it lets the rest go uncounted.
_BEGINS, _STOPPED = "==PROF== Profiling", "optrace: the time for counting is over"

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


@dataclass(frozen=True, slots=True)
class Counted:
    """Kernels of the counted step in launch order: all of them, or the first ones, where the time was over."""

    kernels: tuple[CountedKernel, ...] = ()
    complete: bool = True


@contextmanager
def counted_step(seconds: float) -> Iterator[None]:
    """What the child does around the step that is counted; what is launched after ``seconds`` runs uncounted."""
    torch.cuda.synchronize()

    def stop() -> None:
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        print(_STOPPED, flush=True)

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]  # as above
    timer.start()
    try:
        yield
        torch.cuda.synchronize()
    finally:
        timer.cancel()
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]  # as above


def count(
    child: Sequence[str], time_limit_s: float, progress: Callable[[int], None] = lambda _kernels: None
) -> Counted:
    """Run ``child`` under Nsight Compute; ``progress`` hears how many kernels it has come to.

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
    out, err, status = _output(command, time_limit_s, progress)
    if "ERR_NVGPUCTRPERM" in out + err:
        raise CountersError(
            "the driver lets nobody but root read the GPU's counters (ERR_NVGPUCTRPERM): "
            "https://developer.nvidia.com/ERR_NVGPUCTRPERM says how to change that"
        )
    if status:
        raise CountersError(f"Nsight Compute ended with exit status {status}: {_last(err or out)}")
    return Counted(tuple(read_counters(out)), _STOPPED not in out)


def _output(
    command: Sequence[str], time_limit_s: float, progress: Callable[[int], None]
) -> tuple[str, str, int]:
    """What the command wrote to stdout and stderr, and its exit status."""
    over = threading.Event()
    with (
        tempfile.TemporaryFile("w+") as errors,
        # A session of its own: what ncu starts ends with it.
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        ) as process,
    ):

        def give_up() -> None:
            over.set()
            _kill(process)

        timer = threading.Timer(time_limit_s, give_up)
        timer.daemon = True
        timer.start()
        lines: list[str] = []
        begun = 0
        try:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if line.startswith(_BEGINS):
                    begun += 1
                    progress(begun)
            status = process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                _kill(process)
        errors.seek(0)
        if over.is_set():
            raise CountersError(
                f"Nsight Compute took longer than {time_limit_s:g} s, and had come to {begun} kernels (see --limit)"
            )
        return "".join(lines), errors.read(), status


def _kill(process: subprocess.Popen[str]) -> None:
    """End a process and, where a system has groups of them, what it started."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):  # it has just ended
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


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
