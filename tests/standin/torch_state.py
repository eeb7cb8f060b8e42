"""What a trace must leave as it was: every name of torch, and its switches."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import module as module_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

CLASSES = (FakeTensor, torch.Tensor, torch.nn.Parameter, torch.nn.Module, torch.autograd.Function)


@dataclass(frozen=True, slots=True)
class TorchState:
    """Every name of every torch module and of the classes above, numbers and strings aside, and torch's switches."""

    names: dict[tuple[object, str], object]
    switches: tuple[object, ...]

    def changed_in(self, other: TorchState) -> list[object]:
        """What is not as it was in ``other``, a state of later."""
        changed: list[object] = [
            key for key, value in self.names.items() if other.names.get(key) is not value
        ]
        if other.switches != self.switches:
            changed.append((self.switches, other.switches))
        return changed


def torch_state() -> TorchState:
    modules = [m for n, m in sorted(sys.modules.items()) if n.partition(".")[0] == "torch" and m is not None]
    names = {
        (owner, name): value
        for owner in (*modules, *CLASSES)
        for name, value in vars(owner).items()
        if not name.startswith("__") and not issubclass(type(value), (int, float, str))
    }
    switches = (
        torch._C._only_lift_cpu_tensors(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch._C._is_multithreading_enabled(),
        len(_get_current_dispatch_mode_stack()),
        len(_get_current_function_mode_stack()),
        len(module_hooks._global_forward_pre_hooks),
        len(module_hooks._global_forward_hooks),
        list(sys.meta_path),
    )
    return TorchState(names, switches)
