"""What goes into a traced graph module and comes out, and what it takes for granted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class Guard:
    """A value that the traced run read on the host, or a shape that depended on values: its control flow, and the
    numbers in its later calls, are those that follow from it. ``node`` is the graph's node that reads it."""

    node: str
    op: str
    found: str
    place: str

    def __str__(self) -> str:
        return f"{self.node} ({self.op}) == {self.found}" + (f"  at {self.place}" if self.place else "")


@dataclass(frozen=True, slots=True)
class Signature:
    """Of a ``GraphModule`` made of a trace; its ``meta["optrace"]``.

    ``inputs`` are the placeholders' names in the order of the arguments; ``outputs`` name each tensor of the returned
    tuple: what the block made, then the gradients. ``gradients`` maps a parameter (or an input) to the place of its
    gradient among the outputs. ``written`` are the attributes and inputs that a call of the module changes in place.
    ``example_inputs`` are the traced run's own, as they were before it; None where no values were kept, and the
    attributes are fake tensors. ``random_state`` is each device's before the run.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    gradients: Mapping[str, int]
    written: tuple[str, ...]
    guards: tuple[Guard, ...]
    example_inputs: tuple[torch.Tensor, ...] | None = None
    random_state: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Draw random numbers inside as the traced run did; the generators go on after it where they stood before."""
        devices = [torch.device(name).index for name in self.random_state if name != "cpu"]
        with torch.random.fork_rng(devices):
            for name, state in self.random_state.items():
                if name == "cpu":
                    torch.set_rng_state(state)
                else:
                    torch.cuda.set_rng_state(state, name)
            yield

    def __str__(self) -> str:
        lines = [
            f"inputs: {', '.join(self.inputs) or 'none'}",
            f"outputs: {', '.join(self.outputs) or 'none'}",
            f"written: {', '.join(self.written) or 'nothing'}",
            *(["holds for this run's values:"] if self.guards else []),
            *(f"  {guard}" for guard in self.guards),
        ]
        return "\n".join(lines)
