"""The library's front: trace a block of code, get its report, write it to a file, read it back."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeVar

from optrace.cost.profiles import GpuProfile, Pricing, pricing
from optrace.graph import OpGraph
from optrace.rendering import render
from optrace.rendering.graph_json import read_report
from optrace.report import Report, report
from optrace.tracing import Mode, Session, StandinDevice, open_session

T = TypeVar("T")


class Trace:
    """A traced block; ``optrace.trace`` makes it.

    ``graph`` is what was recorded so far: after an exception that is the part before it, marked partial.
    """

    def __init__(
        self, priced_as: Pricing, mode: Mode, device: str, assume: Literal["error", "zero", "worst"]
    ) -> None:
        self._pricing = priced_as
        self._mode: Mode = mode
        self._device = device
        self._assume = assume
        self._stack = ExitStack()
        self._session: Session | None = None

    def __enter__(self) -> Trace:
        with ExitStack() as stack:
            session = stack.enter_context(
                open_session(
                    self._mode,
                    gpu=self._pricing.gpu.key,
                    answers=answers_of(self._pricing.gpu),
                    device=self._device,
                    assume=self._assume,
                )
            )
            session.describe("optrace.trace")
            stack.enter_context(session.recording())
            self._stack = stack.pop_all()
        self._session = session
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._stack.__exit__(kind, error, traceback)

    @property
    def graph(self) -> OpGraph:
        """The recorded calls. Raises ``RuntimeError`` before the block was entered."""
        return self._opened.graph

    def place(self, value: T) -> T:
        """Move a module, a tensor or a nest of tensors to the traced device, as ``.cuda()`` would."""
        return self._opened.place(value)

    def report(self) -> Report:
        """Price what was recorded."""
        return report(self.graph, self._pricing)

    @property
    def _opened(self) -> Session:
        if self._session is None:
            raise RuntimeError("nothing was traced yet: use this object as `with optrace.trace() as t:`")
        return self._session


def trace(
    *,
    gpu: str = "h200",
    host: str | None = None,
    mode: Mode = "auto",
    device: str = "cuda",
    assume: Literal["error", "zero", "worst"] = "error",
    dispatch_us: float | None = None,
    launch_us: float | None = None,
    bandwidth_tb: float | None = None,
) -> Trace:
    """A context manager that records the ATen calls made inside it and prices them for ``gpu``.

    ``mode``: ``cuda`` runs on a GPU, ``fake`` computes nothing and needs none, ``cpu`` computes on the CPU,
    ``auto`` takes ``cuda`` where there is a GPU and ``fake`` elsewhere. ``dispatch_us``, ``launch_us`` and
    ``bandwidth_tb`` (TB/s) replace numbers of the profiles. Raises ``UnknownProfileError`` for a GPU or host
    that no profile fits; ``TraceError`` on entry for a mode that cannot be had.
    """
    priced_as = pricing(gpu, host, dispatch_us=dispatch_us, launch_us=launch_us, bandwidth_tb_s=bandwidth_tb)
    return Trace(priced_as, mode, device, assume)


def load(path: str | Path) -> Report:
    """Read a ``graph.json`` and price it again as it was. Raises ``GraphFormatError`` on any other file."""
    return read_report(Path(path))


def answers_of(gpu: GpuProfile) -> StandinDevice:
    """What a pretended GPU of this profile says of itself."""
    return StandinDevice(
        name=gpu.name,
        capability=gpu.capability,
        sm_count=gpu.sm_count,
        memory_bytes=gpu.memory_bytes,
        l2_bytes=gpu.l2_bytes,
    )


__all__ = ["Trace", "answers_of", "load", "render", "trace"]
