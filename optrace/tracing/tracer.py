"""``OpTracer``: the watcher that turns a run into an ``OpGraph``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from threading import get_ident
from types import FrameType
from typing import Any

import torch

from optrace.graph import Frame, Mark, MarkKind, OpGraph, TraceInfo
from optrace.graph.opgraph import HOLE, READS, WRITES
from optrace.tracing.calls import Watching, WatchingMode
from optrace.tracing.facts import facts_of
from optrace.tracing.identity import Identities
from optrace.tracing.modules import Activation, ModuleTracker
from optrace.tracing.phases import PhaseTracker
from optrace.tracing.sources import Place, SourceFinder

_NAMED = (torch.dtype, torch.layout, torch.memory_format)
#: Types whose values differ where their reports do.
_TELLING = frozenset({str, torch.device, *_NAMED})
_ONLY_READS = bytes([READS])


@dataclass(frozen=True, slots=True)
class _Op:
    """What the tracer asks of an op in each call. The overload is kept, so that its address stays its own."""

    func: torch._ops.OpOverload
    number: int
    writes: bool
    by_position: tuple[int, ...]
    by_name: dict[str, int]


#: Number of the op, numbers and flags of the tensors, and the keys of the arguments.
_Inputs = tuple[int, list[int], Sequence[int], tuple[Any, ...], tuple[tuple[str, Any], ...]]


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
        self.restart()

    def restart(self, *, within_run: bool = False) -> None:
        """Begin a new graph; what was recorded so far is dropped."""
        if hasattr(self, "_identities"):
            self.close()
        self.graph = OpGraph(self._info)
        self._identities = Identities(self.graph, self._device_name)
        self._ops: dict[int, _Op] = {}
        self._templates: dict[tuple[Any, ...], int] = {}
        self._sources = SourceFinder()
        self._sequence = _ForwardCalls()
        self._modules.restart_counts()
        if within_run:
            self._identities.register_live()

    def close(self) -> None:
        """Stop listening for storages that die: the graph is finished."""
        self._identities.close()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record inside the context. An exception that leaves it marks the graph incomplete and passes on."""
        with self._modules.installed(), self._phases.installed():
            try:
                if not len(self.graph):
                    self._identities.register_live()
                with self._watching(self):
                    yield
            except BaseException as error:
                self.mark_incomplete(
                    f"the run stopped with {type(error).__name__} after {len(self.graph)} calls"
                )
                raise
            finally:
                self._name_storages()

    def set_info(self, *, program: str, steps: int) -> None:
        """Say what was run."""
        self._info = replace(self._info, program=program, steps=steps)
        self.graph.info = replace(self.graph.info, program=program, steps=steps)

    def mark(self, kind: MarkKind, frame: Frame | None) -> None:
        """Keep what happened between two calls."""
        self.graph.marks.append(Mark(kind, len(self.graph), frame))

    def set_precision(self, float32_matmul: str, float32_convolution: str) -> None:
        """Say in which precision float32 matrix products and convolutions ran."""
        self.graph.info = replace(
            self.graph.info, float32_matmul=float32_matmul, float32_convolution=float32_convolution
        )

    def mark_incomplete(self, reason: str) -> None:
        """Say why calls may be missing."""
        self.graph.info = replace(self.graph.info, incomplete=(*self.graph.info.incomplete, reason))

    def call(self, run: Callable[..., Any], func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a call and record it."""
        if not self.enabled:
            return run(*args, **kwargs)
        # Asking a tensor for its shape is no call of the user's program: no function mode has to look at it.
        with torch._C.DisableTorchFunction():
            # Inputs are numbered first: an op may give an input new bytes or another layout.
            inputs = self._encode_inputs(func, args, kwargs)
        result = run(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            # From outside the mode that brought the call; on a thread of autograd's there is nothing.
            self._record(inputs, result, sys._getframe(1).f_back)
        return result

    def _record(self, inputs: _Inputs, result: Any, frame: FrameType | None) -> None:
        op, operands, flags, arg_key, kwarg_key = inputs
        outputs: list[int] = []
        key = (arg_key, kwarg_key, self._key(result, outputs))
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = self.graph.add_template(*map(self._template, key))
        activations = self._modules.activations
        place = self._sources.find(frame, activations)
        task = torch._C._current_graph_task_id()
        phase = self._phases.phase(place.in_optimizer, task != -1)
        graph = self.graph
        module = self._module_row(activations[-1]) if activations else -1
        source = -1
        if task != -1:
            forward_call = self._sequence.call_of_current_node(task)
            if forward_call is not None:
                if module < 0:
                    module = graph.module_of(forward_call)
                if not place.has_line or not activations:
                    source = graph.source_of(forward_call)
        call = len(graph)
        graph.add_call(
            op,
            template,
            operands,
            flags,
            outputs,
            source=source if source >= 0 else self._source_row(place),
            module=module,
            phase=phase,
            stream=self._stream(),
            autograd=self._sequence.add(call, task),
        )

    def _source_row(self, place: Place) -> int:
        if place.row < 0:
            place.row = self.graph.sources.add(place.source)
        return place.row

    def _module_row(self, activation: Activation) -> int:
        if activation.row < 0:
            activation.row = self.graph.module_calls.add(activation.call)
        return activation.row

    # -- encoding ----------------------------------------------------------------------------------

    def _encode_inputs(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Inputs:
        op = self._ops.get(id(func))
        if op is None:
            op = self._ops[id(func)] = self._enter_op(func)
        operands: list[int] = []
        key = self._key
        if not op.writes:
            arg_key = tuple([key(value, operands) for value in args])
            kwarg_key = (
                tuple([(name, key(value, operands)) for name, value in kwargs.items()]) if kwargs else ()
            )
            return op.number, operands, _ONLY_READS * len(operands), arg_key, kwarg_key
        flags: list[int] = []
        keys = []
        for flag, value in zip(op.by_position, args, strict=False):
            keys.append(key(value, operands))
            flags.extend([flag] * (len(operands) - len(flags)))
        named = []
        for name, value in kwargs.items():
            named.append((name, key(value, operands)))
            flags.extend([op.by_name[name]] * (len(operands) - len(flags)))
        return op.number, operands, flags, tuple(keys), tuple(named)

    def _enter_op(self, func: torch._ops.OpOverload) -> _Op:
        facts = facts_of(func)
        by_name = {
            name: WRITES if name in facts.out_args else READS | WRITES if name in facts.mutates else READS
            for name in facts.arg_names
        }
        return _Op(
            func,
            self.graph.add_op_facts(facts),
            bool(facts.mutates),
            tuple(by_name[name] for name in facts.arg_names),
            by_name,
        )

    def _key(self, value: Any, tensors: list[int]) -> Any:
        """What tells a value from others, with its tensors taken out; their numbers are appended to ``tensors``.
        ``_template`` makes the value that is kept of it."""
        kind = type(value)
        if kind is int or value is None:
            return value
        if isinstance(value, torch.Tensor):
            tensors.append(self._identities.tensor(value))
            return HOLE
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
        if isinstance(value, list | tuple):
            return tuple([self._key(item, tensors) for item in value])
        if isinstance(value, torch.SymInt):
            return int(value)
        if isinstance(value, torch.SymFloat):
            return self._key(float(value), tensors)
        if isinstance(value, torch.SymBool):
            return self._key(bool(value), tensors)
        return f"<{kind.__name__}>"

    def _template(self, key: Any) -> Any:
        """The plain value, or the template of values, that a key stands for."""
        if isinstance(key, tuple):
            if len(key) == 2 and isinstance(key[0], type):
                kind, value = key
                return kind(value)
            return tuple([self._template(item) for item in key])
        if isinstance(key, torch.device):
            return self._device_name(key)
        if isinstance(key, _NAMED):
            return str(key)
        return key

    # -- storages ----------------------------------------------------------------------------------

    def _name_storages(self) -> None:
        """Say which storages are parameters, buffers, gradients and optimizer state."""
        graph, identities = self.graph, self._identities

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


class _ForwardCalls:
    """Which recorded call made an autograd node, so that backward calls show the forward's module and line.

    Autograd numbers its nodes by creation, in each thread; the call dispatched right after a number was
    given out belongs to that node. Nodes made inside a backward pass (a reentrant checkpoint's) are kept
    apart: another thread counts them.
    """

    def __init__(self) -> None:
        self._outer: dict[int, int] = {}
        self._inner: dict[int, int] = {}
        self._inner_task = -1
        self._next = {get_ident(): torch._C._autograd._get_sequence_nr()}

    def add(self, call: int, task: int) -> bool:
        """``call`` was dispatched in backward pass ``task`` (-1: in none). Whether autograd has made a node since the
        call before on this thread: the one of this call."""
        thread, following = get_ident(), torch._C._autograd._get_sequence_nr()
        made = following != self._next.get(thread, following)
        self._next[thread] = following
        if task == -1:
            self._outer.setdefault(following - 1, call)
        elif torch.is_grad_enabled():
            if task != self._inner_task:
                self._inner.clear()
                self._inner_task = task
            self._inner.setdefault(following - 1, call)
        return made

    def call_of_current_node(self, task: int) -> int | None:
        """The forward call of the autograd node that runs now in backward pass ``task``."""
        node = torch._C._current_autograd_node()
        if node is None:
            return None
        number = node._sequence_nr()
        if self._inner and task > self._inner_task >= 0:
            return self._inner.get(number, self._outer.get(number))
        return self._outer.get(number)
