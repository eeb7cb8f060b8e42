"""Which module a call belongs to: dotted paths from the outermost module called, and call numbers.

A module called by its parent is named below it, so that one activation shared by several blocks shows
under each. Any other call (a grandparent's, a checkpoint's from within the backward pass) keeps the path
by which the module was first reached.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules import module as hooks

from optrace.graph import ModuleCall


class ModuleTracker:
    """The stack of modules being called, by global forward hooks."""

    def __init__(self) -> None:
        self._stack: list[tuple[nn.Module, ModuleCall]] = []
        self._paths: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._calls: dict[str, int] = {}
        self._roots: dict[str, int] = {}

    @property
    def current(self) -> ModuleCall | None:
        """The innermost module being called."""
        return self._stack[-1][1] if self._stack else None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Follow all module calls inside the context."""
        before = hooks.register_module_forward_pre_hook(self._enter)
        after = hooks.register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()
            self._stack.clear()

    def restart_counts(self) -> None:
        """Number calls from 1 again: a new step begins."""
        self._calls.clear()

    def named_tensors(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """(dotted name, ``parameter`` or ``buffer``, tensor) of every module that was called."""
        for module, path in list(self._paths.items()):
            for name, parameter in module.named_parameters(recurse=False):
                yield f"{path}.{name}", "parameter", parameter
            for name, buffer in module.named_buffers(recurse=False):
                yield f"{path}.{name}", "buffer", buffer

    def _enter(self, module: nn.Module, _inputs: Any) -> None:
        path = self._path(module)
        call = self._calls[path] = self._calls.get(path, 0) + 1
        self._stack.append((module, ModuleCall(path, type(module).__name__, call)))

    def _leave(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        if self._stack:
            self._stack.pop()

    def _path(self, module: nn.Module) -> str:
        if self._stack:
            caller, call = self._stack[-1]
            for name, child in caller._modules.items():
                if child is module:
                    return self._enter_names(module, f"{call.path}.{name}")
        path = self._paths.get(module)
        if path is not None:
            return path
        cls = type(module).__name__
        if self._stack:
            # Not a child of its caller: kept in a plain list, or made on the fly.
            return self._enter_names(module, f"{self._stack[-1][1].path}.<{cls}>")
        number = self._roots[cls] = self._roots.get(cls, 0) + 1
        return self._enter_names(module, cls if number == 1 else f"{cls}#{number}")

    def _enter_names(self, module: nn.Module, path: str) -> str:
        """Remember where a module and, once, all below it were reached."""
        if module not in self._paths:
            for name, child in module.named_modules():
                self._paths.setdefault(child, f"{path}.{name}" if name else path)
        return path
