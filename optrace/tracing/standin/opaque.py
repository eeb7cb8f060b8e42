# torch leaves these functions untyped:
# mypy: disable-error-code="no-untyped-call"
"""Custom ops and Triton kernels: what torch cannot look into.

A custom op with no fake implementation tells nobody the shapes that it returns. Where real values are there, the op
runs on them; else its results are taken to be like its first tensor, and the guess says how to do better. A Triton
kernel is launched beside the dispatcher, which a GPU's recorder does not see; here the launch becomes a call of the
op `optrace::triton_kernel`, which names the kernel and holds its tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from optrace.tracing.standin.patches import Patch, applied
from optrace.tracing.standin.unknown import Answers, NoFakeError
from optrace.tracing.standin.values import Values, effect_of, tensors_in

TRITON_OP = "triton_kernel(str name, Tensor(a!)[] tensors) -> ()"


def results(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], values: Values, answers: Answers
) -> Any:
    """Real or meta tensors for what an op with no fake implementation returns. Raises NoFakeError where neither its
    values nor a tensor among its arguments tell a shape."""
    if func.namespace == "aten":
        raise NoFakeError(str(func))
    effect = effect_of(func)
    writes = effect.written or effect.written_by_name
    if not writes and values.complete and (real := values.all_of(args, kwargs)) is not None:
        try:
            return func(*real[0], **real[1])
        except (NotImplementedError, RuntimeError):
            pass  # it has no kernel for the CPU
    first = next(tensors_in([*args, *kwargs.values()]), None)
    returns = func._schema.returns
    if first is None or any(str(r.type) != "Tensor" for r in returns):
        raise NoFakeError(str(func))
    answers.no_fake(str(func))
    made = tuple(torch.empty(first.shape, dtype=first.dtype, device="meta") for _ in returns)
    return made if len(made) > 1 else made[0]


def _launch(kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    inner = kernel
    while not hasattr(inner, "__name__"):  # a kernel with heuristics wraps another
        inner = inner.fn
    tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]
    torch.ops.optrace.triton_kernel(inner.__name__, tensors)


def _is_fake(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return any(isinstance(v, FakeTensor) for v in (*args, *kwargs.values()))


def _launching(jit: ModuleType) -> list[Patch]:
    """The row for `triton.runtime.jit`, once it is imported."""
    run = jit.JITFunction.run

    def _run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if not _is_fake(args, kwargs):
            return run(self, *args, grid=grid, warmup=warmup, **kwargs)
        return None if warmup else _launch(self, args, kwargs)

    return [Patch(jit.JITFunction, "run", _run, "Triton compiles for a GPU that is there")]


def _tuning(autotuner: ModuleType) -> list[Patch]:
    """The row for `triton.runtime.autotuner`, once it is imported."""
    run = autotuner.Autotuner.run

    def _run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_fake(args, kwargs):
            return run(self, *args, **kwargs)
        return self.fn.run(*args, **{**kwargs, **self.configs[0].all_kwargs()})

    return [Patch(autotuner.Autotuner, "run", _run, "there is nothing to time the configurations on")]


_ROWS = {"triton.runtime.jit": _launching, "triton.runtime.autotuner": _tuning}


class _WhenImported:
    """A finder that changes nothing but what follows on the import of a module in `_ROWS`: importing Triton takes a
    second, and few programs do."""

    def __init__(self, patched: Any) -> None:
        self.patched = patched

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in _ROWS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            self.patched(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # a loader of this spec alone
        return spec


@contextmanager
def triton_kernels() -> Iterator[None]:
    """Launches of Triton kernels on fake tensors become calls, also if Triton is imported only now."""
    rows: list[Any] = []

    def patched(module: ModuleType) -> None:
        row = applied(_ROWS[module.__name__](module))
        row.__enter__()
        rows.append(row)

    finder = _WhenImported(patched)
    for name in _ROWS:
        if name in sys.modules:
            patched(sys.modules[name])
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for row in reversed(rows):
            row.__exit__(None, None, None)
