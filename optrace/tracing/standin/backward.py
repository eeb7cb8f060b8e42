"""Exceptions raised during a backward pass.

When code that autograd calls raises, C++ asks Python for the device's type while the exception passes (see
`backend`), and the exception is lost: autograd returns an error without one. The dispatch mode and the hooks keep
what they raised, and it is put back here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.graph
from torch import Tensor

from optrace.tracing.standin.mode import StandInMode
from optrace.tracing.standin.patches import Patch


def patches(mode: StandInMode) -> list[Patch]:
    """The rows by which autograd raises what was raised."""
    run = torch.autograd.graph._engine_run_backward

    def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
        mode.failure = None
        try:
            return run(*args, **kwargs)
        except SystemError as error:
            failure, mode.failure = mode.failure, None
            if failure is None:
                raise RuntimeError(
                    "an exception was raised in a function that autograd called during backward, and autograd lost it"
                ) from error
            try:
                raise failure from None
            finally:
                del failure  # its traceback has this frame, and so all that the program held

    def keeping(hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return hook(*args, **kwargs)
            except BaseException as error:
                mode.failure = error
                raise

        return call

    def wrapped(register: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Tensor, hook: Callable[..., Any]) -> Any:
            return register(self, keeping(hook))

        return call

    why = "autograd loses exceptions on this backend"
    return [
        Patch(torch.autograd.graph, "_engine_run_backward", _engine_run_backward, why),
        Patch(torch.autograd, "_engine_run_backward", _engine_run_backward, why),
        *(
            Patch(Tensor, name, wrapped(getattr(Tensor, name)), why)
            for name in ("register_hook", "register_post_accumulate_grad_hook")
        ),
    ]
