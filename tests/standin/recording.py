"""A recorder for tests: the names of the calls that a function makes."""

from collections.abc import Callable
from typing import Any

from optrace.tracing.standin import StandIn
from tests.standin.compare_record import Call, Recorder


def recorded(gpu: StandIn, run: Callable[[], Any]) -> list[Call]:
    recorder = Recorder(gpu)
    with gpu.watching(recorder):
        run()
    return recorder.calls


def names(gpu: StandIn, run: Callable[[], Any]) -> list[str]:
    """Overloads without `aten.` and without `.default`."""
    return [c.op.removeprefix("aten.").removesuffix(".default") for c in recorded(gpu, run)]
