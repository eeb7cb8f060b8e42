# ruff: noqa: ARG002  # signatures are those of torch
# torch leaves these functions untyped:
# mypy: disable-error-code="no-untyped-call"
"""The dispatch mode below everything: FakeTensorMode for tensors of the pretended GPU.

It differs from torch's FakeTensorMode where a GPU that really is there would differ from a GPU that is being
described: device names are translated at the last door before dispatch, real tensors that wander in (loaded
weights, constants) are accepted, values of small tensors are followed, and CUDA's own ops have their shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import RLock, get_ident
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorConverter,
    FakeTensorMode,
    UnsupportedOperatorException,
    in_kernel_invocation_manager,
)

from optrace.tracing import interrupts
from optrace.tracing.calls import COMPOSITE, LEFT_OUT, Watcher, kind_of, never_compiled
from optrace.tracing.standin.device import BACKEND, META, parse, to_backend
from optrace.tracing.standin.kernels import instead
from optrace.tracing.standin.layout import contiguous
from optrace.tracing.standin.opaque import results
from optrace.tracing.standin.recurrent import flatten_weight
from optrace.tracing.standin.shapes import SHAPES, Out
from optrace.tracing.standin.unknown import (
    DEPENDS_ON_VALUES,
    HOST_RESULTS,
    Answers,
    Assume,
    Guess,
    gpu_or_cpu,
)
from optrace.tracing.standin.values import Values, effect_of

aten = torch.ops.aten

# Ops whose schema takes a device by position. Everywhere else in ATen a device is keyword-only.
_POSITIONAL_DEVICE: Mapping[object, int] = {
    aten.to.device: 1,
    aten.to.prim_Device: 1,
    aten._pin_memory.default: 1,
    aten.pin_memory.default: 1,
    aten.is_pinned.default: 1,
    torch.ops.prims.device_put.default: 1,
}

_INDEXING = frozenset({aten.index.Tensor})
_LIFTS = frozenset({aten.lift_fresh.default, aten.lift_fresh_copy.default, aten.lift.default})
_PIN = frozenset({aten._pin_memory.default, aten.pin_memory.default})
# Views whose strides torch's Python shape functions get differently from C++ where a dimension has size 1.
_VIEWS = frozenset({aten.view.default, aten._unsafe_view.default})


class _Converter(FakeTensorConverter):
    """Makes fake tensors of real and of meta tensors.

    torch keeps weak references to the fake tensors made of meta tensors. Nothing asks for a fresh meta tensor
    again, and the reference makes `swap_tensors`, hence `module.to()` and `.half()`, refuse.
    """

    def __init__(self, values: Values) -> None:
        super().__init__()
        self.values = values

    def set_tensor_memo(self, t: Tensor, v: FakeTensor) -> None:
        """Remember nothing."""

    def from_real_tensor(self, fake_mode: FakeTensorMode, t: Tensor, *args: Any, **kwargs: Any) -> FakeTensor:
        """A fake tensor for one that has contents."""
        kwargs["make_constant"] = False
        fake = super().from_real_tensor(fake_mode, t, **kwargs)
        self.values.adopt(fake, t)
        return fake


class StandInMode(FakeTensorMode):
    """FakeTensorMode on the backend's device.

    `depth` counts the dispatches under way: torch's own shape functions, which run inside, must see the backend's
    device; everybody outside (the user's program, a recorder above) sees `cuda`.
    """

    def __init__(self, assume: Assume, guesses: list[Guess], values: Values) -> None:
        super().__init__(allow_non_fake_inputs=True, allow_fallback_kernels=False)
        self.values = values
        self.answers = Answers(self.values, assume, guesses)
        self.fake_tensor_converter = _Converter(self.values)
        self.depth = 0
        self.ended = False
        self.watcher: Watcher | None = None
        self.failure: BaseException | None = None  # what a dispatch raised last: see `backward`

    # torch asks this to decide whether constants may be moved to a real device. Never: `torch.cuda` says that
    # a GPU is there, but it is ours.
    avoid_device_init = True

    def __enter__(self) -> Any:
        entered = super().__enter__()
        torch._C._set_only_lift_cpu_tensors(False)  # see `from_host`
        return entered

    def __deepcopy__(self, memo: dict[int, Any]) -> StandInMode:
        """Copied tensors belong to the same mode: torch would otherwise copy the mode with each of them."""
        return self

    @classmethod
    def is_infra_mode(cls) -> bool:
        """No: beside a mode that is not torch's own, what is compiled runs eagerly, and its calls can be watched."""
        return False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not by wrapping `__torch_dispatch__`: `never_compiled` costs nothing a call."""
        return False

    @contextmanager
    def watched_by(self, watcher: Watcher | None) -> Iterator[None]:
        """Show each call that is made from outside to ``watcher`` inside the context; None: to nobody."""
        before, self.watcher = self.watcher, watcher
        try:
            yield
        finally:
            self.watcher = before

    @never_compiled
    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if interrupts.noted and not self.depth and kind_of(func) != LEFT_OUT:
            self._interrupt()
        if self.watcher is None or self.depth or (kind := kind_of(func)) == LEFT_OUT:
            return self._execute(func, types, args, kwargs)
        if kind == COMPOSITE and torch.is_inference_mode_enabled():
            with self:
                parts = decompose(func, args, kwargs)
            if parts is not NotImplemented:
                return parts
        try:
            return self.watcher.call(partial(self._watched, func, types), func, args, kwargs)
        except BaseException as error:
            self.failure = error  # raised by the watcher itself, as an interrupt is
            raise

    def share(self) -> None:
        """From now on several threads may dispatch."""
        if type(self) is StandInMode:
            self.__class__ = SharedMode

    def _interrupt(self) -> None:
        try:
            interrupts.raise_noted()
        except KeyboardInterrupt as error:
            self.failure = error
            raise

    def unseen(self, func: Any, args: Sequence[Any]) -> Any:
        """Execute ``func`` as a call that the program does not make: nobody is shown it."""
        return self._execute(func, (), args, {})

    def _watched(self, func: Any, types: Sequence[type], /, *args: Any, **kwargs: Any) -> Any:
        out = self._execute(func, types, args, kwargs)
        if out is NotImplemented:
            # A tensor subclass comes first with its own handler. The call was shown; what it is made of is not.
            with self.watched_by(None), self:
                out = func(*args, **kwargs)
        return out

    def _execute(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        device = kwargs.get("device")
        if device is not None and device.type == "cuda":
            kwargs = {**kwargs, "device": to_backend(device)}
        elif (at := _POSITIONAL_DEVICE.get(func)) is not None and len(args) > at:
            args = (*args[:at], parse(args[at]), *args[at + 1 :])
        self.depth += 1
        try:
            # Shape functions read many attributes; in a backward pass the function mode would see each of them.
            with torch._C.DisableTorchFunction():
                out = self._dispatch(func, types, args, kwargs)
                if self.depth == 1 and out is not NotImplemented:
                    self._follow(func, args, kwargs, out)
            return out
        except BaseException as error:
            self.failure = error
            if error.args and isinstance(error.args[0], str):
                error.args = (error.args[0].replace(f"{BACKEND}:", "cuda:"), *error.args[1:])
            raise
        finally:
            self.depth -= 1

    def _dispatch(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if (shape := SHAPES.get(func)) is not None and (on := _gpu_of(args)) is not None:
            return self.make(shape(*args, **kwargs), on, {})
        if func in _VIEWS:
            return self._view(func, args[0], args[1])
        if func in DEPENDS_ON_VALUES:
            answer = self.answers.answer(func, args, kwargs)
            if answer is not NotImplemented:
                return self.wrap_real(answer, gpu_or_cpu(args), HOST_RESULTS.get(func))
        elif func in _INDEXING and (plain := self.answers.index(func, args)) is not None:
            with in_kernel_invocation_manager(self):
                meta = func(*plain)
            return FakeTensor(self, meta, args[0].fake_device)
        elif func in _LIFTS and type(args[0]) is Tensor:
            return self.fake_tensor_converter.from_real_tensor(self, args[0])
        elif func in _PIN:
            return self._pinned(args[0])
        elif func is aten.is_pinned.default:
            return getattr(args[0], "pinned", False)
        elif func is aten._cudnn_rnn_flatten_weight.default:
            known = [self.values.get(weight) for weight in args[0]]
            with in_kernel_invocation_manager(self):
                buffer = flatten_weight(*args[:2])
            self.values.move(args[0], known)
            return FakeTensor(self, buffer, args[0][0].fake_device)
        elif (kernel := instead().get(func)) is not None and _gpu_of(args) is not None:
            with self:
                return kernel(*args, **kwargs)
        elif effect_of(func).written and torch.Tag.inplace_view not in func.tags:
            args = [self._described(a) for a in args]
        try:
            return self.dispatch(func, types, args, kwargs)
        except (UnsupportedOperatorException, RuntimeError) as error:
            return self._without_shape(func, args, kwargs, error)

    def _described(self, value: Any) -> Any:
        """A fake tensor for a real one: torch writes real tensors, and fills in nothing, where no argument is fake."""
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
            return [self._described(v) for v in value]
        if isinstance(value, Tensor) and not isinstance(value, FakeTensor):
            return self.fake_tensor_converter.from_real_tensor(self, value)
        return value

    def _without_shape(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], error: RuntimeError
    ) -> Any:
        """What an op returns for which torch has no shape function."""
        if not isinstance(error, UnsupportedOperatorException) and "no fake impl" not in str(error):
            raise error
        if not func._schema.returns:
            return None
        if (shape := SHAPES.get(func)) is not None:
            return self.make(shape(*args, **kwargs), gpu_or_cpu(args), {})
        return self.wrap_real(results(func, args, kwargs, self.values, self.answers), gpu_or_cpu(args))

    def _pinned(self, t: FakeTensor) -> Any:
        """A copy in pinned memory: the same contents, and it says so."""
        pinned: Any = FakeTensor(self, torch.empty_like(t, device=META), t.fake_device)
        pinned.pinned = True
        if (value := self.values.get(t)) is not None:
            self.values.put(pinned, value)
        return pinned

    def _follow(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        if func is aten._amp_foreach_non_finite_check_and_unscale_.default and not self.values.complete:
            # Whether gradients overflowed decides if the optimizer steps. A trace is of an ordinary step.
            for grad in args[0]:
                self.values.forget(grad)
            self.answers.note(
                str(func), "no gradient of the GradScaler overflowed, so that the optimizer stepped"
            )
            return
        self.values.follow(func, args, kwargs, out)

    def _view(self, func: Any, t: FakeTensor, shape: Sequence[int]) -> FakeTensor:
        if not isinstance(t, FakeTensor):
            t = self.fake_tensor_converter.from_real_tensor(self, t)
        with in_kernel_invocation_manager(self):
            meta = func(t, shape)
        return FakeTensor(self, meta, t.fake_device)

    def wrap_real(self, value: Any, device: torch.device, on_host: int | None = None) -> Any:
        """Fake tensors on `device` for real or meta ones; the values of real ones are kept. Of several results,
        the one at `on_host` lives on the CPU."""
        if isinstance(value, (tuple, list)):
            host = torch.device("cpu")
            return tuple(self.wrap_real(v, host if i == on_host else device) for i, v in enumerate(value))
        if not isinstance(value, Tensor):
            return value
        fake = FakeTensor(self, value.to(META), device)
        if value.device.type == "cpu" and value.numel() <= self.values.limit:
            self.values.put(fake, value)
        return fake

    def make(self, described: Any, device: torch.device, buffers: dict[int, Tensor]) -> Any:
        """The tensors that a shape function described."""
        if isinstance(described, (tuple, list)):
            return type(described)(self.make(d, device, buffers) for d in described)
        if not isinstance(described, Out):
            return described
        stride = described.stride or contiguous(described.shape)
        if described.within is None:
            meta = torch.empty_strided(described.shape, stride, dtype=described.dtype, device=META)
        else:
            buffer = described.within.buffer
            whole = buffers.setdefault(id(buffer), torch.empty(buffer.shape, dtype=buffer.dtype, device=META))
            meta = whole.as_strided(described.shape, stride, described.within.offset)
        return FakeTensor(self, meta, torch.device(described.device) if described.device else device)


def _of_the_thread_inside(name: str) -> property:
    """An attribute of the dispatch under way: to a thread that waits, or is outside, it is what it is outside."""

    def get(self: SharedMode) -> Any:
        return vars(self)[name] if self.inside == get_ident() else type(vars(self)[name])()

    def put(self: SharedMode, value: Any) -> None:
        vars(self)[name] = value

    return property(get, put)


class SharedMode(StandInMode):
    """The mode of several threads: one dispatches at a time."""

    turn = RLock()
    inside = 0  # the thread that dispatches

    depth = _of_the_thread_inside("depth")
    in_kernel_invocation = _of_the_thread_inside("in_kernel_invocation")

    @never_compiled
    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if self.ended and not any(issubclass(kind, FakeTensor) for kind in types):
            return func(*args, **(kwargs or {}))  # of a thread that runs on when the stand-in is gone
        return self._in_turn(StandInMode.__torch_dispatch__, func, types, args, kwargs)

    def unseen(self, func: Any, args: Sequence[Any]) -> Any:
        """As outside of threads."""
        return self._in_turn(StandInMode.unseen, func, args)

    def _in_turn(self, dispatch: Callable[..., Any], *args: Any) -> Any:
        with self.turn:
            before, self.inside = self.inside, get_ident()
            try:
                return dispatch(self, *args)
            finally:
                self.inside = before


def decompose(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What `func` does in smaller ops; NotImplemented if it is not a composite op."""
    kernel = instead().get(func)
    if kernel is not None and any(getattr(a, "is_cuda", False) for a in args[:2]):
        return kernel(*args, **kwargs)
    return func.decompose(*args, **kwargs)


def _gpu_of(args: Sequence[Any]) -> torch.device | None:
    """The backend's device if one of the first arguments is on it."""
    for value in args[:2]:
        if isinstance(value, FakeTensor) and value.fake_device.type == BACKEND:
            return value.fake_device
    return None
