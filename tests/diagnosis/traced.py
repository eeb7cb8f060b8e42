"""A warm step as it is diagnosed."""

from __future__ import annotations

from collections.abc import Callable

from optrace.cost.profiles import pricing
from optrace.report import Report
from optrace.report import report as price
from optrace.tracing import open_session

Step = Callable[[], object]


def traced(make: Callable[[], Step], *, steps: int = 1) -> Report:
    """The made step recorded after one that is not, as a warm program."""
    with open_session("fake", assume="worst") as session:
        step = make()
        step()
        with session.recording():
            for _ in range(steps):
                step()
        session.describe("step", steps)
    return price(session.graph, pricing("h200"))


def traced_step(step: Step, *, steps: int = 1) -> Report:
    """The same of a step that takes nothing made before."""
    return traced(lambda: step, steps=steps)
