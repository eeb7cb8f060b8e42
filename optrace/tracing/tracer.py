"""``OpTracer``: the dispatch mode that turns a run into an ``OpGraph``."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from optrace.graph import ModuleCall, OpGraph, Source, TraceInfo
from optrace.graph.opgraph import HOLE, READS, WRITES, Table
from optrace.tracing.facts import facts_of, is_composite
from optrace.tracing.identity import Identities
from optrace.tracing.modules import ModuleTracker
from optrace.tracing.phases import PhaseTracker, in_backward
from optrace.tracing.sources import SourceFinder

#: Questions and marks that no backend executes.
_NAMESPACES_LEFT_OUT = frozenset({"prim", "profiler"})


#: Numbers and flags of the tensors, and the templates of the arguments.
_Inputs = tuple[list[int], list[int], tuple[object, ...], tuple[tuple[str, object], ...]]

Decompose = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def take_apart(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a composite op by its parts; NotImplemented if it has none."""
    return func.decompose(*args, **kwargs)


class CallMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its mode hooks untyped
    """Meets every call that a backend executes, in ``call``. A composite op, which comes whole under inference
    mode, is met in its parts."""

    def __init__(self, decompose: Decompose = take_apart) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._decompose = decompose

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not: torch would wrap ``__torch_dispatch__``, which costs as much as all else that happens here. Compiled
        code reaches a mode from C++, where no frame is being compiled."""
        return False

    @abstractmethod
    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run ``func``, watching."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _is_left_out(func):
            return func(*args, **kwargs)
        if is_composite(func) and torch.is_inference_mode_enabled():
            with self:
                result = self._decompose(func, args, kwargs)
            if result is not NotImplemented:
                return result
        return self.call(func, args, kwargs)


class OpTracer(CallMode):  # type: ignore[no-untyped-call]  # as above
    """Records every ATen call into ``graph``.

    ``device_name`` names a device as the user's program sees it; ``stream`` numbers the current stream;
    ``decompose`` takes a composite op apart.
    """

    def __init__(
        self,
        info: TraceInfo,
        *,
        device_name: Callable[[torch.device], str] = str,
        stream: Callable[[], int] = lambda: 0,
        decompose: Decompose = take_apart,
    ) -> None:
        super().__init__(decompose)
        self.enabled = True
        self._device_name = device_name
        self._stream = stream
        self._info = info
        self._modules = ModuleTracker()
        self._phases = PhaseTracker()
        self._sources = SourceFinder()
        self.restart()

    def restart(self, *, within_run: bool = False) -> None:
        """Begin a new graph; what was recorded so far is dropped."""
        if hasattr(self, "_identities"):
            self.close()
        graph = self.graph = OpGraph(self._info)
        self._identities = Identities(
            graph, self._device_name, on_free=lambda storage: graph.add_free(storage, len(graph) - 1)
        )
        self._op_numbers: dict[Any, tuple[int, tuple[int, ...], dict[str, int]]] = {}
        # By address; the value is kept beside its number, so that the address stays its own.
        self._numbers: dict[int, tuple[int, Source | ModuleCall]] = {}
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
        if not len(self.graph):
            self._identities.register_live()
        with self._modules.installed(), self._phases.installed():
            try:
                with self:
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

    def mark_incomplete(self, reason: str) -> None:
        """Say why calls may be missing."""
        self.graph.info = replace(self.graph.info, incomplete=(*self.graph.info.incomplete, reason))

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call and record it."""
        if not self.enabled:
            return func(*args, **kwargs)
        # Asking a tensor for its shape is no call of the user's program: no function mode has to look at it.
        with torch._C.DisableTorchFunction():
            # Inputs are numbered first: an op may give an input new bytes or another layout.
            inputs = self._encode_inputs(func, args, kwargs)
        result = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            self._record(func, inputs, result, sys._getframe())
        return result

    def _record(self, func: Any, inputs: _Inputs, result: Any, frame: FrameType) -> None:
        operands, flags, arg_template, kwarg_template = inputs
        outputs: list[int] = []
        out_template = self._encode(result, outputs)
        source = self._sources.find(frame)
        phase = self._phases.phase(source)
        module = self._modules.current
        graph = self.graph
        made_node = self._sequence.makes_node()
        if in_backward():
            forward_call = self._sequence.call_of_current_node()
            if forward_call is not None:
                module = module or graph.module_call(forward_call)
                if source.line is None or not self._modules.current:
                    source = graph.source(forward_call)
        call = graph.add_call(
            self._op_numbers[func][0],
            graph.add_template(arg_template, kwarg_template, out_template),
            operands,
            flags,
            outputs,
            source=self._number(graph.sources, source),
            module=-1 if module is None else self._number(graph.module_calls, module),
            phase=phase,
            stream=self._stream(),
            autograd=made_node,
        )
        self._sequence.add(call)

    def _number(self, table: Table[Any], value: Source | ModuleCall) -> int:
        """``table.add`` without hashing a value that was met as this very object before."""
        known = self._numbers.get(id(value))
        if known is None:
            known = self._numbers[id(value)] = (table.add(value), value)
        return known[0]

    # -- encoding ----------------------------------------------------------------------------------

    def _encode_inputs(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Inputs:
        known = self._op_numbers.get(func)
        if known is None:
            known = self._op_numbers[func] = self._enter_op(func)
        _, by_position, by_name = known
        operands: list[int] = []
        flags: list[int] = []
        arg_template = []
        for position, value in enumerate(args):
            arg_template.append(self._encode(value, operands))
            flags.extend([by_position[position]] * (len(operands) - len(flags)))
        kwarg_template = []
        for name, value in kwargs.items():
            kwarg_template.append((name, self._encode(value, operands)))
            flags.extend([by_name[name]] * (len(operands) - len(flags)))
        return operands, flags, tuple(arg_template), tuple(kwarg_template)

    def _enter_op(self, func: torch._ops.OpOverload) -> tuple[int, tuple[int, ...], dict[str, int]]:
        facts = facts_of(func)
        by_name = {
            name: WRITES if name in facts.out_args else READS | WRITES if name in facts.mutates else READS
            for name in facts.arg_names
        }
        return self.graph.add_op_facts(facts), tuple(by_name[name] for name in facts.arg_names), by_name

    def _encode(self, value: Any, tensors: list[int]) -> object:
        """A value with its tensors taken out; their numbers are appended to ``tensors``."""
        if isinstance(value, torch.Tensor):
            tensors.append(self._identities.tensor(value))
            return HOLE
        kind = type(value)
        if kind in _PLAIN:
            return value
        if isinstance(value, list | tuple):
            return tuple([self._encode(item, tensors) for item in value])
        if isinstance(value, torch.device):
            return self._device_name(value)
        if isinstance(value, torch.SymInt):
            return int(value)
        if isinstance(value, torch.SymFloat):
            return float(value)
        if isinstance(value, torch.SymBool):
            return bool(value)
        if isinstance(value, _NAMED):
            return str(value)
        return f"<{kind.__name__}>"

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


class CallCounter(CallMode):  # type: ignore[no-untyped-call]  # as above
    """Runs each call that a tracer would record inside a context of its own, and records nothing."""

    def __init__(self, around: Callable[[int], AbstractContextManager[object]]) -> None:
        super().__init__()
        self._around = around
        self._next = 0

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call inside its context."""
        number, self._next = self._next, self._next + 1
        with self._around(number):
            return func(*args, **kwargs)


@cache
def _is_left_out(func: Any) -> bool:
    return not isinstance(func, torch._ops.OpOverload) or func.namespace in _NAMESPACES_LEFT_OUT


_PLAIN = frozenset({int, float, bool, complex, str, type(None)})
_NAMED = (torch.dtype, torch.layout, torch.memory_format)


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

    def makes_node(self) -> bool:
        """Whether autograd has made a node since the call before on this thread: the one of this call."""
        thread, following = get_ident(), torch._C._autograd._get_sequence_nr()
        made = following != self._next.get(thread, following)
        self._next[thread] = following
        return made

    def add(self, call: int) -> None:
        """``call`` was dispatched; ``makes_node`` has looked at the counter just before."""
        sequence = self._next[get_ident()] - 1
        task = torch._C._current_graph_task_id()
        if task == -1:
            self._outer.setdefault(sequence, call)
        elif torch.is_grad_enabled():
            if task != self._inner_task:
                self._inner.clear()
                self._inner_task = task
            self._inner.setdefault(sequence, call)

    def call_of_current_node(self) -> int | None:
        node = torch._C._current_autograd_node()
        if node is None:
            return None
        number = node._sequence_nr()
        task = torch._C._current_graph_task_id()
        if self._inner and task > self._inner_task >= 0:
            return self._inner.get(number, self._outer.get(number))
        return self._outer.get(number)
