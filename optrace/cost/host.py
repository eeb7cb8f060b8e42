"""Host time of a call: the tax that eager execution pays before the device can start."""

from __future__ import annotations

from dataclasses import dataclass

from optrace.cost.profiles import HostProfile
from optrace.cost.work import Work
from optrace.graph import OpNode


@dataclass(frozen=True, slots=True)
class HostTime:
    """The four layers of a call's host time, microseconds. They add."""

    python_us: float = 0.0
    autograd_us: float = 0.0
    dispatch_us: float = 0.0
    launch_us: float = 0.0

    @property
    def total_us(self) -> float:
        return self.python_us + self.autograd_us + self.dispatch_us + self.launch_us

    @property
    def before_launch_us(self) -> float:
        """Up to the first launch call."""
        return self.python_us + self.autograd_us + self.dispatch_us

    def __add__(self, other: HostTime) -> HostTime:
        return HostTime(
            self.python_us + other.python_us,
            self.autograd_us + other.autograd_us,
            self.dispatch_us + other.dispatch_us,
            self.launch_us + other.launch_us,
        )


def host_time(node: OpNode, work: Work, host: HostProfile) -> HostTime:
    """Python between calls, autograd, dispatcher, launches.

    The backward pass is walked by the C++ engine, so no Python stands between its calls.
    """
    backward = node.phase == "backward"
    launches = work.launches or 0
    return HostTime(
        python_us=0.0 if backward else host.python_us,
        autograd_us=host.autograd_us if backward or node.autograd else 0.0,
        dispatch_us=host.dispatch_us if launches or work.launches is None else host.view_us,
        launch_us=launches * host.launch_us,
    )
