"""The step around a model: its inputs, a forward pass, with ``--train`` loss, backward and optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from operator import add
from types import ModuleType
from typing import Any, Protocol, TypeVar

import torch
from torch.utils import _pytree as pytree

from optrace.program.options import DTYPES, OPTIMIZERS, Options, ProgramError

T = TypeVar("T")


class Recorder(Protocol):
    """What a program needs of a tracing session."""

    @property
    def device(self) -> str: ...
    def place(self, value: T) -> T: ...
    def recording(self, *, warmup: int = ..., steps: int = ...) -> AbstractContextManager[None]: ...
    def begin_run(self) -> None: ...


def arguments_of(value: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments: a tuple or list, a dict, or a single value."""
    if isinstance(value, Mapping):
        return (), dict(value)
    if isinstance(value, tuple | list):
        return tuple(value), {}
    return (value,), {}


def inputs_from(module: ModuleType, source: str, options: Options) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the model is called with: ``source`` of the module, called with ``batch=`` where that is asked for."""
    value = getattr(module, source)
    if not callable(value):
        if options.batch is not None:
            raise ProgramError(
                f"--batch {options.batch}: {source} is fixed; define get_inputs(batch=...) for it"
            )
        return arguments_of(value)
    if options.batch is None:
        return arguments_of(value())
    if "batch" not in inspect.signature(value).parameters:
        raise ProgramError(f"--batch {options.batch}: {source}() takes no batch=; give it that parameter")
    return arguments_of(value(batch=options.batch))


def step_around(
    model: Callable[..., Any],
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    options: Options,
    recorder: Recorder,
) -> Callable[[], object]:
    """Placed and converted, ready to be called again and again."""
    weights_dtype = None if options.autocast or options.dtype is None else DTYPES[options.dtype]
    if isinstance(model, torch.nn.Module):
        model = recorder.place(model if weights_dtype is None else model.to(weights_dtype))
    args, kwargs = recorder.place(_converted(inputs, weights_dtype))

    def forward() -> Any:
        with _autocast(options, recorder):
            return model(*args, **kwargs)

    if options.train:
        return _training_step(model, forward, options, recorder)

    def inference() -> object:
        with torch.no_grad() if options.no_grad else nullcontext():
            return forward()

    return inference


def _training_step(
    model: Callable[..., Any], forward: Callable[[], Any], options: Options, recorder: Recorder
) -> Callable[[], object]:
    parameters = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    if not parameters:
        raise ProgramError("--train: the model has no parameters to train")
    assert isinstance(model, torch.nn.Module)
    model.train()
    optimizer = OPTIMIZERS[options.optimizer](parameters)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        output = forward()
        with _autocast(options, recorder):
            loss = _loss(output)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()

    return step


def _loss(output: Any) -> torch.Tensor:
    """The output's own loss, else the mean of its floating-point tensors (the sum of means of several)."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    leaves = pytree.tree_leaves(dict(output) if isinstance(output, Mapping) else output)
    means = [leaf.mean() for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if not means:
        raise ProgramError(
            f"--train: no tensor of the output ({type(output).__name__}) depends on a parameter, nor has it a .loss"
        )
    return reduce(add, means)


def _converted(value: T, dtype: torch.dtype | None) -> T:
    if dtype is None:
        return value
    converted: T = pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, value
    )
    return converted


def _autocast(options: Options, recorder: Recorder) -> AbstractContextManager[Any]:
    if not options.autocast:
        return nullcontext()
    return torch.autocast(recorder.device, dtype=DTYPES[options.dtype or "bfloat16"])


def describe_step(options: Options) -> str:
    if options.train:
        parts = [f"training step with {options.optimizer}"]
    else:
        parts = ["forward pass under no_grad" if options.no_grad else "forward pass with gradients on"]
    if options.autocast:
        parts.append(f"autocast to {options.dtype or 'bfloat16'}")
    elif options.dtype:
        parts.append(options.dtype)
    if options.batch is not None:
        parts.append(f"batch {options.batch}")
    return ", ".join(parts)
