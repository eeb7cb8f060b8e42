"""A GPU that is not there: what measuring asks of ``torch.cuda``, answered on the CPU.

Its profiler says that each call launches one kernel of ``KERNEL_US``; its events show the host's clock.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

import torch

from optrace.measuring import events, launches, machine, recorder, steady
from optrace.tracing import session
from optrace.tracing.gaps import Watch

KERNEL_US = 7.0

PROPERTIES = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    L2_cache_size=1024,
    total_memory=141 << 30,
    clock_rate=1_000_000,
    uuid="1234",
)


class FakeEvent:
    """Shows the host's clock."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.at - self.at) * 1e3


def with_kernels(trace, of_call=lambda number: True):
    """The events of a profiler on a CPU, with a kernel for each call of ``of_call``."""
    found = list(trace)
    marks = [event for event in trace if str(event.get("name", "")).startswith("optrace call ")]
    for event in marks:
        number = int(event["name"].rpartition(" ")[2])
        if event.get("cat") == "user_annotation" and of_call(number):
            middle = event["ts"] + event["dur"] / 2
            found.append(
                {
                    "cat": "cuda_runtime",
                    "ts": middle,
                    "tid": event["tid"],
                    "args": {"correlation": number + 1},
                }
            )
            found.append(
                {
                    "cat": "kernel",
                    "name": f"kernel_{number}",
                    "ts": middle + 5,
                    "dur": KERNEL_US,
                    "tid": "stream 7",
                    "args": {"correlation": number + 1, "grid": [1, 2, 3]},
                }
            )
    return found


def install(monkeypatch, of_call=lambda number: True) -> None:
    """Put it where torch's GPU would be, for the test."""
    real_events = launches.trace_events
    monkeypatch.setattr(
        launches, "trace_events", lambda profiler: with_kernels(real_events(profiler), of_call)
    )
    real_profile = torch.profiler.profile
    monkeypatch.setattr(torch.profiler, "profile", lambda activities: real_profile(activities=activities[:1]))
    real_empty = torch.empty

    def empty(*sizes, **how):
        how.pop("device", None)
        return real_empty(*sizes, **how)

    for name, answer in {
        "is_available": lambda: True,
        "synchronize": lambda: None,
        "get_device_properties": lambda *_: PROPERTIES,
        "get_device_name": lambda *_: PROPERTIES.name,
        "memory_allocated": lambda: 1000,
        "max_memory_allocated": lambda: 1600,
        "reset_peak_memory_stats": lambda: None,
        "current_device": lambda: 0,
        "_sleep": lambda cycles: None,
        "Event": FakeEvent,
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(events.torch, "empty", empty)
    monkeypatch.setattr(session, "_cuda_stream", lambda: 0)
    monkeypatch.setattr(session, "stood_in_before", lambda: False)
    monkeypatch.setattr(session, "watch_of", lambda *_: Watch())
    monkeypatch.setattr(session.Session, "place", lambda self, value: value)
    monkeypatch.setattr(machine, "gpu_state", lambda *_: None)
    in_backward = steady._in_backward
    monkeypatch.setattr(steady, "_in_backward", lambda _device, run: in_backward("cpu", run))
    monkeypatch.setattr(machine.torch.version, "cuda", "13.0")
    assert recorder.torch is torch
