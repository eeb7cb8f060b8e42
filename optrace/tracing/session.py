"""A session: the device that a program runs on while it is traced, and when its calls are recorded.

    with open_session(mode="fake", gpu=GpuAnswers(...)) as session:
        model = session.place(Model())       # set-up: runs on the traced device, is not recorded
        with session.recording():
            model(x)                         # recorded
    session.graph

Modes: ``fake`` (no memory, no GPU), ``cpu`` (as fake, with every tensor's values computed on the
CPU), ``cuda``. With ``device="cpu"`` the program keeps its tensors on the CPU; in ``cpu`` mode it then simply runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from types import TracebackType
from typing import Any, Literal, TypeVar, cast, overload

import torch

from optrace.graph import Frame, OpGraph, TraceInfo
from optrace.tracing import interrupts
from optrace.tracing.calls import Watching, WatchingMode
from optrace.tracing.clocks import heard
from optrace.tracing.gaps import Gaps, timed_gaps, watch_of
from optrace.tracing.keeping import KeepingTracer, Kept
from optrace.tracing.standin import Assume, StandIn, StandinDevice, standin
from optrace.tracing.standin.device import BACKEND
from optrace.tracing.tracer import CallCounter, OpTracer

Mode = Literal["auto", "fake", "cpu", "cuda"]
MODES: tuple[Mode, ...] = ("auto", "fake", "cpu", "cuda")
DEVICES = ("cuda", "cpu")

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class TraceError(RuntimeError):
    """The session cannot be opened as asked."""


@dataclass(slots=True)
class _Marks:
    """What ``optrace.step`` marks do: the first ``warmup`` are skipped, the next ``wanted`` recorded."""

    warmup: int = 0
    wanted: int = 1
    seen: int = 0
    depth: int = 0


class Session:
    """A program's device while it is traced; made by ``open_session``."""

    def __init__(
        self, info: TraceInfo, device: str, stand_in: StandIn | None, *, keep_values: bool = False
    ) -> None:
        self.mode: Mode = cast(Mode, info.mode)
        self.notes = info.notes
        self._device = device
        self._stand_in = stand_in
        self._watching: Watching = WatchingMode if stand_in is None else stand_in.watching
        self._marks = _Marks()
        self._around_step: Callable[[], AbstractContextManager[object]] | None = None
        self._inside_step: AbstractContextManager[object] | None = None
        self._recording = False
        self._tracer = (KeepingTracer if keep_values else OpTracer)(
            info,
            device_name=self._device_name,
            stream=_cuda_stream if info.mode == "cuda" else self._stand_in_stream,
            watching=self._watching,
        )

    @property
    def device(self) -> str:
        """Where ``place`` moves things: "cuda" or "cpu"."""
        return self._device

    @property
    def graph(self) -> OpGraph:
        """What was recorded so far."""
        return self._tracer.graph

    @property
    def calls(self) -> int:
        """How many calls were recorded so far."""
        return self._tracer.calls

    @property
    def kept(self) -> Kept | None:
        """What the recorded run started from; None where it was not to be kept."""
        return self._tracer.kept if isinstance(self._tracer, KeepingTracer) else None

    @property
    def steps_seen(self) -> int:
        """How many ``optrace.step`` marks the program passed."""
        return self._marks.seen

    def place(self, value: T) -> T:
        """Modules, tensors and nests of them moved to the traced device, as a user's ``.cuda()`` would."""
        if self._device == "cpu":
            return value
        if self._stand_in is not None:
            placed: T = self._stand_in.place(value)
            return placed
        if isinstance(value, torch.nn.Module):
            value.cuda()
            return value
        moved: T = torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.cuda(), value)
        return moved

    @contextmanager
    def recording(self, *, warmup: int = 0, steps: int = 1) -> Iterator[None]:
        """Record the calls made inside. Entered again, it appends.

        If the program marks its steps with ``optrace.step``, what came before the first mark is dropped, the
        first ``warmup`` steps are skipped and the next ``steps`` recorded.
        """
        self._marks = _Marks(warmup, steps)
        self._recording = True
        try:
            with self._tracer.recording():
                yield
                interrupts.raise_noted()
        finally:
            self._recording = False
            self._tracer.enabled = True
            self._tracer.set_precision(_float32_matmul(), _float32_convolution())
            if self._stand_in is not None:
                self._note_guesses(self._stand_in)

    def time_gaps(self, step: Callable[[], object]) -> Gaps:
        """Run a step with only the time between its calls looked at."""
        found: list[Gaps] = []
        with self.timing_gaps(found.append):
            step()
        return found[0]

    def timing_gaps(self, found: Callable[[Gaps], object]) -> AbstractContextManager[None]:
        """The step that runs inside has only the time between its calls looked at; ``found`` is told."""
        if self._stand_in is not None:
            raise TraceError(
                "with a stand-in at work, Python takes several times as long: time where the program runs"
            )
        return timed_gaps(self._watching, found, watch_of(self._watching, self._device))

    def begin_run(self) -> None:
        """Inside of ``recording``: the program is run, once more where several steps are recorded."""
        self._tracer.mark("run", None)

    def forget(self) -> None:
        """Drop what was recorded so far; the next recording begins a new graph."""
        self._tracer.restart()

    @contextmanager
    def counting(self, around: Callable[[int], AbstractContextManager[object]]) -> Iterator[None]:
        """Record nothing; run each call, numbered from 0 as a recording would, inside ``around(number)``."""
        with self._watching(CallCounter(around)):
            yield

    @contextmanager
    def around_steps(self, around: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
        """Run each step that the program marks inside ``around()``, whatever that does; by itself nothing is recorded."""
        self._around_step = around
        try:
            yield
        finally:
            self._around_step = None

    def describe(self, program: str, steps: int = 1) -> None:
        """Say in the graph what was run."""
        self._tracer.set_info(program=program, steps=steps)

    def note(self, text: str) -> None:
        """Keep a remark on how the run was recorded, once."""
        self._tracer.note(text)

    def hear(self, kind: str, frame: Frame) -> None:
        """The program read a clock or waited for the device."""
        if self._recording and self._tracer.enabled:
            self._tracer.mark("clock" if kind == "clock" else "synchronize", frame)

    def close(self) -> None:
        """The graph is finished."""
        self._tracer.close()

    def enter_step(self) -> None:
        """A marked step begins."""
        if self._around_step is not None and not self._marks.depth:
            self._inside_step = self._around_step()
            self._inside_step.__enter__()
        marks = self._marks
        if not self._recording or marks.depth:
            marks.depth += 1
            return
        marks.depth += 1
        marks.seen += 1
        if marks.seen == 1:
            self._tracer.restart(within_run=True)
        self._tracer.enabled = marks.warmup < marks.seen <= marks.warmup + marks.wanted
        if self._tracer.enabled:
            self._tracer.mark("step", None)

    def leave_step(self) -> None:
        """A marked step ends; what comes between steps is not recorded."""
        marks = self._marks
        marks.depth -= 1
        if self._recording and not marks.depth:
            self._tracer.enabled = False
        if self._inside_step is not None and not marks.depth:
            inside, self._inside_step = self._inside_step, None
            inside.__exit__(None, None, None)

    def _stand_in_stream(self) -> int:
        return 0 if self._stand_in is None else self._stand_in.stream

    def _device_name(self, device: torch.device) -> str:
        if self._stand_in is not None:
            return str(self._stand_in.seen(device))
        return str(device)

    def _note_guesses(self, stand_in: StandIn) -> None:
        guesses: dict[str, int] = {}
        for guess in stand_in.guesses:
            guesses[str(guess)] = guesses.get(str(guess), 0) + 1
        for text, count in guesses.items():
            self._tracer.mark_incomplete(f"guess: {text}" + (f" ({count} times)" if count > 1 else ""))
        stand_in.guesses.clear()


_active: Session | None = None


@contextmanager
def open_session(
    mode: Mode = "auto",
    *,
    gpu: str = "",
    answers: StandinDevice | None = None,
    device: str = "cuda",
    assume: Assume = "error",
    keep_values: bool = False,
) -> Iterator[Session]:
    """Pretend or use a device while the context is active; whatever is stood in for is restored after it.

    ``gpu`` is the profile's key, kept in the graph; ``answers`` is what the pretended GPU says of itself.
    ``keep_values``: keep beside the record the tensors that a run starts from, so that its calls can be run again.
    Raises ``TraceError`` for ``mode="cuda"`` without a GPU, an unknown mode or device, ``keep_values`` where there are
    none, and a session within a session.
    """
    global _active
    if _active is not None:
        raise TraceError("a trace is already running in this process: end it before starting another")
    if mode not in MODES:
        raise TraceError(f"unknown mode {mode!r} (one of {', '.join(MODES)})")
    if device not in DEVICES:
        raise TraceError(f"unknown device {device!r} (one of {', '.join(DEVICES)})")
    has_gpu = torch.cuda.is_available() and not (mode == "auto" and stood_in_before())
    if mode == "cuda" and not has_gpu:
        raise TraceError(
            "mode 'cuda' needs a CUDA GPU and torch sees none: use --mode fake, which needs no GPU"
        )
    if mode == "cuda" and stood_in_before():
        raise TraceError(
            "mode 'cuda' cannot follow mode 'fake' in one process: torch has one accelerator a process, and it became "
            "the stand-in: trace on the GPU in a process of its own"
        )
    chosen: Mode = mode if mode != "auto" else "cuda" if has_gpu else "fake"
    stands_in = chosen == "fake" or (chosen == "cpu" and device == "cuda")
    if keep_values and stands_in:
        raise TraceError(
            f"there are no values to keep in mode {chosen!r} on device {device!r}: use mode 'cuda' on a GPU, or mode 'cpu' "
            "with device 'cpu'"
        )
    notes: tuple[str, ...] = ()
    if mode == "auto":
        notes = (
            "mode cuda: there is a GPU" if has_gpu else "mode fake: torch sees no GPU, nothing is computed",
        )
    with ExitStack() as stack:
        stack.enter_context(interrupts.noted_in_between())
        # What is priced is the eager program: compiled functions run as they are written.
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_compiling_noted())
        stand_in = None
        if stands_in:
            stand_in = stack.enter_context(
                standin(
                    answers or StandinDevice(),
                    assume=assume,
                    default_device=None if device == "cpu" else "cuda",
                    values="all" if chosen == "cpu" else "small",
                )
            )
        info = TraceInfo(
            mode=chosen,
            torch=str(torch.__version__),
            gpu=gpu,
            notes=notes,
        )
        _active = Session(info, device, stand_in, keep_values=keep_values)
        stack.callback(_close)
        stack.enter_context(heard(_active.hear))
        yield _active


#: What is said of a program that compiles parts of itself.
COMPILES_NOTHING = "torch.compile is set aside: what it would compile ran, and is priced, as eager code"


@contextmanager
def _compiling_noted() -> Iterator[None]:
    """Keep a remark where the program calls ``torch.compile``: the figures are not those of what it would run."""
    compiler = torch.compile

    @wraps(compiler)
    def noted(*args: Any, **kwargs: Any) -> Any:
        if _active is not None:
            _active.note(COMPILES_NOTHING)
        return compiler(*args, **kwargs)

    torch.compile = noted
    try:
        yield
    finally:
        torch.compile = compiler


def _float32_matmul() -> str:
    """torch's precision of float32 matrix products; empty where it was set in two ways that contradict each other."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return ""


def _float32_convolution() -> str:
    """The same of cuDNN's convolutions, in the same words: ``high`` with TF32."""
    try:
        return "high" if torch.backends.cudnn.allow_tf32 else "highest"
    except RuntimeError:
        return ""


def stood_in_before() -> bool:
    """Whether the stand-in has been this process's accelerator: autograd on a real GPU fails from then on (the
    engine asks torch's only accelerator for streams)."""
    return torch._C._get_privateuse1_backend_name() == BACKEND


def session_is_open() -> bool:
    """Whether this process is tracing."""
    return _active is not None


def _close() -> None:
    global _active
    if _active is not None:
        _active.close()
    _active = None


def _cuda_stream() -> int:
    """The current stream's number: 0 for the default stream."""
    return int(torch._C._cuda_getCurrentStream(torch.cuda.current_device())[0])


class _Step(ContextDecorator):
    def __enter__(self) -> None:
        if _active is not None:
            _active.enter_step()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if _active is not None:
            _active.leave_step()


@overload
def step(function: None = None) -> _Step: ...
@overload
def step(function: F) -> F: ...
def step(function: F | None = None) -> _Step | F:
    """Mark what one step of a script is: ``with optrace.step():``, or ``@optrace.step`` on a function.

    Outside a trace it does nothing, so a script may keep it.
    """
    return _Step() if function is None else _Step()(function)
