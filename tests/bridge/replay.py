"""Runs a step under the recorder and again as a ``GraphModule``, and says where the two differ."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

import optrace


@dataclass(frozen=True)
class Step:
    """Something to run, and what it trains."""

    run: Callable[[], Any]
    models: tuple[torch.nn.Module, ...] = ()
    optimizers: tuple[torch.optim.Optimizer, ...] = ()

    @classmethod
    def of(cls, run: Callable[[], Any]) -> Step:
        """With the models and optimizers that a closure holds."""
        held = list(_held_by(run, set()))
        return cls(
            run,
            tuple(value for value in held if isinstance(value, torch.nn.Module)),
            tuple(value for value in held if isinstance(value, torch.optim.Optimizer)),
        )

    def state(self) -> dict[str, torch.Tensor]:
        """Parameters, buffers, gradients and optimizer state, under the names that the module has for them."""
        found: dict[str, torch.Tensor] = {}
        names: dict[int, str] = {}
        for model in self.models:
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                found[name] = tensor
                names[id(tensor)] = name
                if tensor.grad is not None:
                    found[f"gradient of {name}"] = tensor.grad
        for optimizer in self.optimizers:
            for parameter, state in optimizer.state.items():
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        found[f"optimizer_state.{names[id(parameter)].replace('.', '_')}_{key}"] = value
        return found


def _held_by(function: Any, seen: set[int]) -> Iterator[Any]:
    for cell in getattr(function, "__closure__", None) or ():
        value = cell.cell_contents
        if id(value) not in seen:
            seen.add(id(value))
            yield value
            yield from _held_by(value, seen)


@dataclass
class Replay:
    """``trace`` of a step, the ``module`` made of it; how many tensors were ``compared`` with eager's, and by name the
    largest distance, as part of the largest value, of those that ``differ``."""

    trace: optrace.Trace
    module: GraphModule
    outputs: list[torch.Tensor]
    compared: list[str] = field(default_factory=list)
    differ: dict[str, float] = field(default_factory=dict)

    def compare(self, name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
        self.compared.append(name)
        if (found.shape, found.dtype) != (expected.shape, expected.dtype):
            self.differ[name] = float("inf")
        elif not same_bits(found, expected):
            self.differ[name] = distance(found, expected)

    def module_again(self) -> GraphModule:
        """The module at the start of the run."""
        return self.trace.to_fx(outputs=self.outputs)

    @property
    def same_calls(self) -> bool:
        """The module's nodes are the trace's calls, in their order."""
        return calls_of(self.module) == [node.op for node in self.trace.graph]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal, NaNs included."""
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference as part of the largest value."""
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))


def calls_of(module: GraphModule) -> list[str]:
    """The ops of the nodes that stand for calls of the trace."""
    return [str(node.target) for node in module.graph.nodes if node.meta.get("optrace")]


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors of a result, whatever it is made of."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def replayed(step: Step, twin: Step | None = None, *, mode: Any = "cpu", device: str = "cpu") -> Replay:
    """Trace a step, run the module made of it from the same start, and compare all that eager returned or left behind.

    ``twin`` is the same program built again from the same seed: it runs with nothing watching, and the module is
    compared with that; without it, with the traced run itself.
    """
    before = torch.get_rng_state()
    on_the_gpu = torch.cuda.get_rng_state() if mode == "cuda" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with optrace.trace(mode=mode, device=device, keep_values=True) as trace:
            output = step.run()
        outputs = tensors_of(output)
        module = trace.to_fx(outputs=outputs)
        expected, state = outputs, step.state()
        if twin is not None:
            torch.set_rng_state(before)
            if on_the_gpu is not None:
                torch.cuda.set_rng_state(on_the_gpu)
            expected, state = tensors_of(twin.run()), twin.state()
    signature = module.meta["optrace"]
    with signature.seeded():
        returned = module(*signature.example_inputs)
    replay = Replay(trace, module, outputs)
    assert len(expected) == len(outputs)
    for place, tensor in enumerate(expected):
        replay.compare(f"output {place}", returned[place], tensor)
    held = dict((*module.named_parameters(), *module.named_buffers()))
    for name, tensor in state.items():
        if name in held:
            replay.compare(name, held[name], tensor)
        elif name.removeprefix("gradient of ") in signature.gradients:
            replay.compare(name, returned[signature.gradients[name.removeprefix("gradient of ")]], tensor)
    return replay
