"""``OpTracer``: the watcher that turns a run into an ``OpGraph``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from threading import get_ident
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from optrace.graph import Frame, Mark, MarkKind, OpGraph, TraceInfo
from optrace.graph.opgraph import HOLE
from optrace.tracing.calls import Watching, WatchingMode
from optrace.tracing.encoding import NAMED, Encoder, Event
from optrace.tracing.identity import Identities, SeenTensor
from optrace.tracing.modules import ModuleTracker
from optrace.tracing.phases import PhaseTracker
from optrace.tracing.sources import SourceFinder

#: Types whose values differ where their reports do.
_TELLING = frozenset({str, torch.device, *NAMED})

#: So many calls and frees are kept as they came before they are encoded.
_MANY = 256

_get_task = torch._C._current_graph_task_id
_get_node = torch._C._current_autograd_node
_get_sequence = torch._C._autograd._get_sequence_nr
_WithoutFunctions = torch._C.DisableTorchFunction


class OpTracer:
    """Records every ATen call into ``graph``.

    ``device_name`` names a device as the user's program sees it; ``stream`` numbers the current stream;
    ``watching`` brings a watcher before each call.
    """

    def __init__(
        self,
        info: TraceInfo,
        *,
        device_name: Callable[[torch.device], str] = str,
        stream: Callable[[], int] = lambda: 0,
        watching: Watching = WatchingMode,
    ) -> None:
        self.enabled = True
        self._device_name = device_name
        self._stream = stream
        self._watching = watching
        self._info = info
        self._modules = ModuleTracker()
        self._phases = PhaseTracker()
        self._begin()

    def restart(self, *, within_run: bool = False) -> None:
        """Begin a new graph; what was recorded so far is dropped."""
        self._identities.close()
        self._begin()
        if within_run:
            self._register_live()

    def _begin(self) -> None:
        self._graph = OpGraph(self._info)
        self._events: list[Event] = []
        self._identities = Identities(self._device_name, self._events.append)
        self._sources = SourceFinder()
        self._encoder = Encoder(self._graph, self._events, self._identities, self._sources)
        self._tensor_types: set[type] = {torch.Tensor, torch.nn.Parameter, FakeTensor}
        self._modules.restart_counts()

    @property
    def graph(self) -> OpGraph:
        """What was recorded so far."""
        self._encoder.encode()
        return self._graph

    @property
    def calls(self) -> int:
        """How many calls were recorded so far."""
        return self._encoder.calls

    def close(self) -> None:
        """Stop listening for storages that die: the graph is finished."""
        self._encoder.encode()
        self._identities.close()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record inside the context. An exception that leaves it marks the graph incomplete and passes on."""
        with self._modules.installed(), self._phases.installed():
            try:
                if not len(self.graph):
                    self._register_live()
                with self._watching(self):
                    yield
            except BaseException as error:
                self.mark_incomplete(
                    f"the run stopped with {type(error).__name__} after {len(self.graph)} calls"
                )
                raise
            finally:
                self._name_storages()

    def _register_live(self) -> None:
        for storage in self._identities.live():
            self._encoder.storage(storage)

    def set_info(self, *, program: str, steps: int) -> None:
        """Say what was run."""
        self._info = replace(self._info, program=program, steps=steps)
        self.graph.info = replace(self.graph.info, program=program, steps=steps)

    def note(self, text: str) -> None:
        """Keep a remark on how the run was recorded, once."""
        if text not in self._info.notes:
            self._info = replace(self._info, notes=(*self._info.notes, text))
            self._graph.info = replace(self._graph.info, notes=(*self._graph.info.notes, text))

    def mark(self, kind: MarkKind, frame: Frame | None) -> None:
        """Keep what happened between two calls. A finalizer may read a clock while the encoder runs, so nothing is
        encoded here."""
        self._graph.marks.append(Mark(kind, self.calls, frame))

    def set_precision(self, float32_matmul: str, float32_convolution: str) -> None:
        """Say in which precision float32 matrix products and convolutions ran."""
        self.graph.info = replace(
            self.graph.info, float32_matmul=float32_matmul, float32_convolution=float32_convolution
        )

    def mark_incomplete(self, reason: str) -> None:
        """Say why calls may be missing."""
        self.graph.info = replace(self.graph.info, incomplete=(*self.graph.info.incomplete, reason))

    def call(self, run: Callable[..., Any], func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a call and keep what is to be recorded of it.

        What is done here is done when no cache of the processor holds it, so it is as little as can be: to look at the
        tensors, since an op may give an input new bytes or another layout and no result outlives its use, and at the
        frames. The rest is done by the encoder, for many calls at once.
        """
        if not self.enabled:
            return run(*args, **kwargs)
        key, seen, tensor_types = self._key, self._identities.seen, self._tensor_types
        operands: list[SeenTensor] = []
        given: list[Any] = []
        # Asking a tensor for its shape is no call of the user's program: no function mode has to look at it.
        with _WithoutFunctions():
            for value in args:
                if type(value) in tensor_types:  # as ``_key`` does; most arguments are tensors
                    operands.append(seen(value))
                    given.append(HOLE)
                else:
                    given.append(key(value, operands))
            named = tuple([(name, key(value, operands)) for name, value in kwargs.items()]) if kwargs else ()
        result = run(*args, **kwargs)
        outputs: list[SeenTensor] = []
        with _WithoutFunctions():
            if type(result) in tensor_types:
                outputs.append(seen(result))
                made = HOLE
            else:
                made = key(result, outputs)
            task, node, makes_nodes = _get_task(), -1, False
            if task != -1:
                running, makes_nodes = _get_node(), torch.is_grad_enabled()
                if running is not None:
                    node = running._sequence_nr()
            thread = get_ident()
            # What a thread of the program's calls is not made in the modules that another runs.
            own = thread == self._modules.thread or task != -1
            activations = self._modules.activations if own else []
            # From outside the mode that brought the call; on a thread of autograd's there is nothing.
            walk = self._sources.walk(sys._getframe(1).f_back, activations, task)
            self._events.append(
                (
                    func,
                    given,
                    named,
                    made,
                    operands,
                    outputs,
                    walk,
                    activations[-1] if activations else None,
                    self._phases.steps,
                    self._stream(),
                    thread,
                    _get_sequence(),
                    task,
                    node,
                    makes_nodes,
                )
            )
        if len(self._events) >= _MANY:
            self._encoder.encode()
        return result

    def _key(self, value: Any, tensors: list[SeenTensor]) -> Any:
        """What tells a value from others, with its tensors taken out, which are appended to ``tensors``; the encoder
        makes of it the value that is kept."""
        kind = type(value)
        if kind in self._tensor_types:
            tensors.append(self._identities.seen(value))
            return HOLE
        if kind is int or value is None:
            return value
        if kind is list or kind is tuple:
            key = self._key
            return tuple([key(item, tensors) for item in value])
        if kind in _TELLING:
            return value
        if kind is bool:
            return (bool, value)  # equal to 1 or 0
        if kind is float or kind is complex:
            # 1.0 equals 1, 0.0 equals -0.0, and a NaN nothing.
            return (kind, value if value and value == value else repr(value))
        if isinstance(value, torch.Tensor):
            self._tensor_types.add(kind)
            return self._key(value, tensors)
        if isinstance(value, list | tuple):
            return tuple([self._key(item, tensors) for item in value])
        if isinstance(value, torch.SymInt):
            return int(value)
        if isinstance(value, torch.SymFloat):
            return self._key(float(value), tensors)
        if isinstance(value, torch.SymBool):
            return self._key(bool(value), tensors)
        return f"<{kind.__name__}>"

    # -- storages ----------------------------------------------------------------------------------

    def _name_storages(self) -> None:
        """Say which storages are parameters, buffers, gradients and optimizer state."""
        graph, identities = self.graph, self._identities  # all encoded, so that what was seen has its number

        def label(tensor: torch.Tensor, kind: str, name: str) -> None:
            storage = identities.known_storage(tensor)
            if storage is not None and storage >= 0 and not graph.storages[storage].kind:
                graph.set_storage(storage, kind=kind, name=name)
            number = identities.known_tensor(tensor)
            if number is not None:
                graph.tensor_names.setdefault(number, name)

        names: dict[int, str] = {}
        for name, kind, tensor in self._modules.named_tensors():
            names.setdefault(id(tensor), name)
            label(tensor, kind, name)
            if tensor.grad is not None:
                label(tensor.grad, "gradient", f"{name}.grad")
        for optimizer in list(self._phases.optimizers):
            for parameter, state in optimizer.state.items():
                for key, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor):
                        label(value, "optimizer state", f"{names.get(id(parameter), 'parameter')}.{key}")


class CallCounter:
    """Runs each call that a tracer would record inside a context of its own, and records nothing."""

    def __init__(self, around: Callable[[int], AbstractContextManager[object]]) -> None:
        self._around = around
        self._next = 0

    def call(self, run: Callable[..., Any], func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002  # as every watcher's
        """Run a call inside its context."""
        number, self._next = self._next, self._next + 1
        with self._around(number):
            return run(*args, **kwargs)
