# ruff: noqa: ARG001  # signatures are those of torch
# torch leaves these functions untyped:
# mypy: disable-error-code="no-untyped-call"
"""The function mode on top: calls of the torch API that name a device, before torch looks at the name.

Most calls that say `cuda` could be translated in the dispatch mode. Some ask the CUDA runtime for the current
device, or copy to the GPU, before they dispatch anything: those are translated here.

Calls of torch's own Python functions (`torch.nn.functional`, `Tensor.backward`, ...) are looked through: torch
would hand the whole function to this mode and hide from it what the function calls. `look_through` makes those
functions believe that no mode is on, so that their bodies run with it on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, reduce
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import _device as default_device
from torch.utils._device import DeviceContext, _device_constructors

from optrace.tracing.standin.device import BACKEND, parse, to_backend
from optrace.tracing.standin.mode import StandInMode
from optrace.tracing.standin.patches import Patch

Call = Callable[[StandInMode, Any, tuple[Any, ...], dict[str, Any]], Any]


class DeviceNames(TorchFunctionMode):
    """Translates `cuda` in calls of the torch API; everything else passes with two dictionary look-ups."""

    def __init__(self, mode: StandInMode) -> None:
        super().__init__()
        self.mode = mode

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        special = _SPECIAL.get(func)
        if special is not None:
            return special(self.mode, func, tuple(args), dict(kwargs or {}))
        if kwargs:
            device = kwargs.get("device")
            if device is not None:
                return func(*args, **{**kwargs, "device": parse(device)})
            return func(*args, **kwargs)
        return func(*args)


def _factory(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call that makes a tensor: its device is the one named, else torch's default device.

    torch keeps the default device's own mode at the bottom of the stack, below this one, so the default has to
    be looked up here.
    """
    device = kwargs.get("device")
    if device is not None:
        kwargs["device"] = parse(device)
    elif default_device.CURRENT_DEVICE is not None:
        kwargs["device"] = to_backend(default_device.CURRENT_DEVICE)
    return func(*args, **kwargs)


def _from_data(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.tensor([x, y])` of tensors: torch asks each for its value below all modes, where there is none."""
    if args and isinstance(args[0], (list, tuple)):
        leaves = torch.utils._pytree.tree_leaves(args[0])
        if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
            if kwargs.get("dtype") is None:
                kwargs["dtype"] = reduce(torch.promote_types, map(_dtype_of, leaves))
            args = (torch.utils._pytree.tree_map_only(torch.Tensor, _value_of, args[0]), *args[1:])
    return _factory(mode, func, args, kwargs)


def _dtype_of(value: Any) -> torch.dtype:
    """The dtype that a number or a tensor gives the tensor that it becomes part of."""
    if isinstance(value, torch.Tensor):
        return value.dtype
    kinds = {bool: torch.bool, int: torch.int64, complex: torch.complex64}
    return kinds.get(type(value), torch.get_default_dtype())


def _value_of(tensor: torch.Tensor) -> Any:
    """The number in a tensor of one element; torch says what is wrong with any other."""
    return tensor.item() if tensor.numel() == 1 else tensor


def _to(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`Tensor.to(device, ...)`; a device may also be given by keyword, a dtype or a tensor in its place."""
    if len(args) > 1:
        args = (args[0], parse(args[1]), *args[2:])
    if "device" in kwargs:
        kwargs["device"] = parse(kwargs["device"])
    return func(*args, **kwargs)


def _cuda(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`Tensor.cuda(device=None, non_blocking=False, memory_format=...)`."""
    tensor, *rest = args
    kwargs |= dict(zip(("device", "non_blocking"), rest, strict=False))
    device = kwargs.pop("device", None)
    return tensor.to(parse(torch.device("cuda", 0) if device is None else device), **kwargs)


_LEGACY_DTYPES = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Bool": torch.bool,
}


def _type(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`Tensor.type()` and `Tensor.type("torch.cuda.FloatTensor")`."""
    kind = args[1] if len(args) > 1 else kwargs.get("dtype")
    if kind is None:
        return func(*args, **kwargs).replace(BACKEND, "cuda")
    name = (
        kind
        if isinstance(kind, str)
        else f"{getattr(kind, '__module__', '')}.{getattr(kind, '__name__', '')}"
    )
    if name.startswith("torch.cuda.") and name.endswith("Tensor"):
        return args[0].to(torch.device(BACKEND, 0), _LEGACY_DTYPES[name[len("torch.cuda.") : -len("Tensor")]])
    return func(*args, **kwargs)


def _set_item(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`x[index] = 3.0`: for a tensor on CUDA the number becomes a tensor on the CPU, unseen but for its lift."""
    x, index, value = args
    if isinstance(value, (bool, int, float, complex)) and x.is_cuda:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            number = mode.wrap_real(torch.tensor(value, dtype=x.dtype), torch.device("cpu"))
        value = torch.ops.aten.lift_fresh.default(number)
    return func(x, index, value)


_SPECIAL: dict[Any, Call] = {
    **dict.fromkeys(_device_constructors(), _factory),
    torch.tensor: _from_data,
    torch.as_tensor: _from_data,
    torch.Tensor.__setitem__: _set_item,
    torch.Tensor.to: _to,
    torch.Tensor.type: _type,
    torch.Tensor.cuda: _cuda,
}


def _no_override(values: Iterator[Any] | Sequence[Any]) -> bool:
    plain = torch._C._disabled_torch_function_impl
    for value in values:
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            continue
        override = getattr(kind, "__torch_function__", None)
        if override is not None and override is not plain and override != torch.Tensor.__torch_function__:
            return False
    return True


def _only_ours() -> bool:
    """Whether the function modes that are on are this one and the default device's: neither cares about
    torch's Python functions as such."""
    return all(isinstance(mode, (DeviceNames, DeviceContext)) for mode in _get_current_function_mode_stack())


def _look_through(original: Callable[..., bool], *, takes_iterable: bool) -> Callable[..., bool]:
    def has_torch_function(*args: Any) -> bool:
        if _no_override(args[0] if takes_iterable else args) and _only_ours():
            return False
        return original(*args)

    return has_torch_function


_QUESTIONS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


@cache
def _answers() -> dict[str, Callable[..., bool]]:
    """Our function for each question. TorchScript, which compiles the bodies of torch's functions, knows the
    questions by the identity of the function, so ours are made once and made known to it."""
    answers = {
        name: _look_through(getattr(torch._C, f"_{name}"), takes_iterable=name == "has_torch_function")
        for name in _QUESTIONS
    }
    for answer in answers.values():
        torch.jit._builtins._register_builtin(answer, "aten::has_torch_function")
    return answers


def look_through_patches() -> list[Patch]:
    """A row for each torch module that asks `has_torch_function` at the head of its Python functions."""
    originals = {name: getattr(torch._C, f"_{name}") for name in _QUESTIONS}
    answers = _answers()
    return [
        Patch(
            module, name, answers[name], "the body of a torch function has to run with the function mode on"
        )
        for module_name, module in list(sys.modules.items())
        if module_name == "torch" or module_name.startswith("torch.")
        for name in _QUESTIONS
        if getattr(module, "__dict__", {}).get(name) is originals[name]
    ]
