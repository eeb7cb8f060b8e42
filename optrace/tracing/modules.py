"""Which module a call belongs to: dotted paths from the outermost module called, and call numbers.

A module called by its parent is named below it, so that one activation shared by several blocks shows
under each. Any other call (a grandparent's, a checkpoint's from within the backward pass) keeps the path
by which the module was first reached.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.nn.modules import module as hooks


@dataclass(slots=True)
class Activation:
    """A module in its ``number``-th call, by the frame at ``frame_address``, which lives as long as the call. When
    it is left, ``module`` is None: nothing that knows of the call keeps parameters alive.

    ``chain`` is for the finder of sources: the number of the stack outside that frame. ``row`` is for the one who
    keeps module calls in a table; -1 before.
    """

    module: nn.Module | None
    path: str
    cls: str
    number: int
    frame_address: int
    chain: int | None = None
    row: int = -1


class ModuleTracker:
    """The stack of modules being called, by global forward hooks and, where there are no others, in their place."""

    def __init__(self) -> None:
        #: From the outermost to the innermost module being called.
        self.activations: list[Activation] = []
        #: The thread whose modules are followed.
        self.thread = get_ident()
        self._paths: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._calls: dict[str, int] = {}
        self._roots: dict[str, int] = {}
        # The module at a path, and the names and paths of its children by address, as they were when last looked at.
        self._below: dict[str, tuple[ref[nn.Module], dict[int, tuple[str, str]]]] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Follow all module calls inside the context."""
        self.thread = get_ident()
        before = hooks.register_module_forward_pre_hook(self._before)
        after = hooks.register_module_forward_hook(self._after, always_call=True)
        call, any_hook = nn.Module.__call__, hooks._has_any_global_hook
        nn.Module.__call__ = self._shortened(call)  # type: ignore[method-assign]  # see there
        # Compiled modules warn of global hooks: the program's, that is, not of ours.
        hooks._has_any_global_hook = _has_other_global_hooks
        try:
            yield
        finally:
            nn.Module.__call__ = call  # type: ignore[method-assign]  # as it was
            hooks._has_any_global_hook = any_hook
            before.remove()
            after.remove()
            self.activations.clear()

    def _shortened(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """``Module.__call__``, without the way that torch takes through its lists of hooks where the only ones are ours:
        in a model of small ops that takes as long as an op."""
        enter, leave = self._enter, self._leave

        def __call__(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if (
                module._backward_hooks
                or module._backward_pre_hooks
                or module._forward_hooks
                or module._forward_pre_hooks
                or hooks._global_backward_pre_hooks
                or hooks._global_backward_hooks
                or len(hooks._global_forward_hooks) > 1
                or len(hooks._global_forward_pre_hooks) > 1
                or module._compiled_call_impl is not None
                or torch._C._get_tracing_state()
            ):
                return call(module, *args, **kwargs)
            enter(module, id(sys._getframe()))
            try:
                return module.forward(*args, **kwargs)
            finally:
                leave()

        return __call__

    def restart_counts(self) -> None:
        """Number calls from 1 again: a new step begins."""
        self._calls.clear()
        for activation in self.activations:
            activation.chain, activation.row = None, -1

    def named_tensors(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """(dotted name, ``parameter`` or ``buffer``, tensor) of every module that was called."""
        for module, path in list(self._paths.items()):
            for name, parameter in module.named_parameters(recurse=False):
                yield f"{path}.{name}", "parameter", parameter
            for name, buffer in module.named_buffers(recurse=False):
                yield f"{path}.{name}", "buffer", buffer

    def classes(self) -> Iterator[tuple[str, str]]:
        """(path, dotted class) of every module that was called or lies below one."""
        for module, path in list(self._paths.items()):
            yield path, f"{type(module).__module__}.{type(module).__qualname__}"

    def _before(self, module: nn.Module, _inputs: Any) -> None:
        self._enter(module, id(sys._getframe(1)))

    def _after(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        self._leave()

    def _enter(self, module: nn.Module, frame_address: int) -> None:
        if get_ident() != self.thread:
            return
        path = self._path(module)
        number = self._calls[path] = self._calls.get(path, 0) + 1
        self.activations.append(Activation(module, path, type(module).__name__, number, frame_address))

    def _leave(self) -> None:
        if self.activations and get_ident() == self.thread:
            self.activations.pop().module = None

    def _path(self, module: nn.Module) -> str:
        caller = self.activations[-1] if self.activations else None
        if caller is not None:
            path = self._path_below(caller, module)
            if path is not None:
                return path
        path = self._paths.get(module)
        if path is not None:
            return path
        cls = type(module).__name__
        if caller is not None:
            # Not a child of its caller: kept in a plain list, or made on the fly.
            return self._enter_names(module, f"{caller.path}.<{cls}>")
        number = self._roots[cls] = self._roots.get(cls, 0) + 1
        return self._enter_names(module, cls if number == 1 else f"{cls}#{number}")

    def _path_below(self, caller: Activation, module: nn.Module) -> str | None:
        """The path of a child, by the first of its names; None of a module that is none. The paths of all children
        are kept together: looking through them for each would be quadratic in a long ``Sequential``."""
        parent = caller.module
        if parent is None:
            return None
        children = parent._modules
        kept = self._below.get(caller.path)
        if kept is not None and kept[0]() is parent:
            known = kept[1].get(id(module))
            if known is not None and children.get(known[0]) is module:
                return known[1]
        if not any(child is module for child in children.values()):
            return None
        paths: dict[int, tuple[str, str]] = {}
        for name, child in children.items():
            if child is not None and id(child) not in paths:
                paths[id(child)] = (name, self._enter_names(child, f"{caller.path}.{name}"))
        self._below[caller.path] = (ref(parent), paths)
        return paths[id(module)][1]

    def _enter_names(self, module: nn.Module, path: str) -> str:
        """Remember where a module and, once, all below it were reached."""
        if module not in self._paths:
            for name, child in module.named_modules():
                self._paths.setdefault(child, f"{path}.{name}" if name else path)
        return path


def _has_other_global_hooks() -> bool:
    """Whether there is a hook on all modules besides the tracker's two."""
    return bool(
        hooks._global_backward_pre_hooks
        or hooks._global_backward_hooks
        or len(hooks._global_forward_hooks) > 1
        or len(hooks._global_forward_pre_hooks) > 1
    )
