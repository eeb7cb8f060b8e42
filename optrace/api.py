"""The library's front: trace a block of code, get its report, write it to a file, read it back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from optrace.cost.profiles import GpuProfile, Pricing, pricing
from optrace.graph import OpGraph
from optrace.rendering import render
from optrace.rendering.graph_json import costs_record, read_report
from optrace.report import Report, report
from optrace.tracing import Mode, Session, StandinDevice, open_session

if TYPE_CHECKING:
    from torch.fx import GraphModule

T = TypeVar("T")


class TraceOptions(TypedDict, total=False):
    """What ``trace`` takes, for those that hand it on (``from_fx``, ``backend``): same names, same defaults."""

    gpu: str
    host: str | None
    mode: Mode
    device: str
    assume: Literal["error", "zero", "worst"]
    dispatch_us: float | None
    launch_us: float | None
    bandwidth_tb: float | None


class Trace:
    """A traced block; ``optrace.trace`` makes it.

    ``graph`` is what was recorded so far: after an exception that is the part before it, marked partial.
    """

    def __init__(
        self,
        priced_as: Pricing,
        mode: Mode,
        device: str,
        assume: Literal["error", "zero", "worst"],
        *,
        keep_values: bool = False,
    ) -> None:
        self._pricing = priced_as
        self._mode: Mode = mode
        self._device = device
        self._assume = assume
        self._keep_values = keep_values
        self._running = False
        self._stack = ExitStack()
        self._session: Session | None = None

    @contextmanager
    def _session_of(self, program: str) -> Iterator[Session]:
        """A session as asked for; afterwards the trace is what it recorded."""
        with open_session(
            self._mode,
            gpu=self._pricing.gpu.key,
            answers=answers_of(self._pricing.gpu),
            device=self._device,
            assume=self._assume,
            keep_values=self._keep_values,
        ) as session:
            session.describe(program)
            yield session
        self._session = session

    def __enter__(self) -> Trace:
        with ExitStack() as stack:
            session = stack.enter_context(self._session_of("optrace.trace"))
            stack.enter_context(session.recording())
            self._stack = stack.pop_all()
        self._session = session
        self._running = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self._running = False
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

    def to_fx(self, *, inputs: Any = None, outputs: Any = None) -> GraphModule:
        """The finished trace as a ``torch.fx.GraphModule`` over the recorded ATen overloads, in their order.

        Parameters and buffers of the modules that ran are attributes under their own names, optimizer state and
        gradients that were there before under ``optimizer_state`` and ``gradient``, tensors made of Python's numbers
        constants. What else the block found is a placeholder, in order of first use; ``inputs`` (a tensor or a nest of
        them) chooses them instead, in that order, and the rest become constants. The module returns a flat tuple:
        the tensors of ``outputs``, by default what the block made and its program still holds (without what autograd
        may hold for it), then the gradients. What the block writes in place, the module writes: its attributes and its
        inputs. ``module.meta["optrace"]`` is its ``Signature``: names, example inputs, the generators' state, and the
        guards (values that the run read, on which its control flow hung).

        Each node's ``meta`` has ``val``, ``tensor_meta``, ``stack_trace`` and ``nn_module_stack`` as torch's tracers
        write them, and ``optrace``, the call's figures as ``graph.json`` names them (None in nodes that are no call
        of the trace).

        With ``optrace.trace(keep_values=True)`` the attributes hold the values that the run started from, and the
        module runs. Otherwise they are fake tensors on the traced device: it can be looked at and transformed,
        and runs once values were loaded with ``load_state_dict(..., assign=True)``.

        Raises ``RuntimeError`` inside the block; ``FxError`` (a ``ValueError``) for a tensor that the trace does not
        know, and for a call that cannot be written.
        """
        from optrace.tracing.fx import graph_module

        if self._running:
            raise RuntimeError("the trace is still running: call to_fx() after its block")
        module = graph_module(self.graph, self._opened.kept, inputs=inputs, outputs=outputs)
        report = self.report()
        for node in module.graph.nodes:
            found = node.meta.get("optrace")
            if found is not None:
                call = found["call"]
                node.meta["optrace"] = {
                    "call": call,
                    "phase": report.graph.phase(call),
                    **costs_record(report, call),
                }
        return module

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
    keep_values: bool = False,
) -> Trace:
    """A context manager that records the ATen calls made inside it and prices them for ``gpu``.

    ``mode``: ``cuda`` runs on a GPU, ``fake`` computes nothing and needs none, ``cpu`` computes on the CPU,
    ``auto`` takes ``cuda`` where there is a GPU and ``fake`` elsewhere. ``dispatch_us``, ``launch_us`` and
    ``bandwidth_tb`` (TB/s) replace numbers of the profiles. ``keep_values`` keeps the tensors that the block finds,
    and a copy of those that it writes, so that ``to_fx()`` gives a module that runs; there are values with
    ``mode="cuda"``, and with ``mode="cpu", device="cpu"``. Raises ``UnknownProfileError`` for a GPU or host
    that no profile fits; ``TraceError`` on entry for a mode that cannot be had.
    """
    priced_as = pricing(gpu, host, dispatch_us=dispatch_us, launch_us=launch_us, bandwidth_tb_s=bandwidth_tb)
    return Trace(priced_as, mode, device, assume, keep_values=keep_values)


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
