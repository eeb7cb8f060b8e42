"""How to run a program: what may be chosen, and what does not go together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "adadelta": torch.optim.Adadelta,
    "adafactor": torch.optim.Adafactor,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamax": torch.optim.Adamax,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}

DTYPES: Mapping[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
    "half": torch.float16,
    "float32": torch.float32,
    "fp32": torch.float32,
    "float64": torch.float64,
    "fp64": torch.float64,
}


class ProgramError(ValueError):
    """There is nothing to run as asked: what failed, the value, the way out."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to run a program. ``args`` are the script's own (``sys.argv[1:]``).

    ``steps`` are recorded after ``warmup`` (default: 1 with ``train``, so that optimizer state exists, else 0)
    that are not. ``dtype`` is that of weights and inputs, or with ``autocast`` the one to cast to.
    """

    train: bool = False
    optimizer: str = "adamw"
    steps: int = 1
    warmup: int | None = None
    dtype: str | None = None
    autocast: bool = False
    no_grad: bool = False
    batch: int | None = None
    args: tuple[str, ...] = ()


#: Options that mean something only where optrace builds the step from a model and its inputs.
MODEL_OPTIONS = ("train", "optimizer", "dtype", "autocast", "no_grad", "batch")


def check(options: Options) -> None:
    """Raises ``ProgramError`` for values that do not exist, are out of range or do not go together."""
    for name, value, table in (
        ("optimizer", options.optimizer, OPTIMIZERS),
        ("dtype", options.dtype, DTYPES),
    ):
        if value is not None and value not in table:
            raise ProgramError(f"unknown {name} {value!r} (one of {', '.join(table)})")
    for name, count, least in (
        ("steps", options.steps, 1),
        ("warmup", options.warmup, 0),
        ("batch", options.batch, 1),
    ):
        if count is not None and count < least:
            raise ProgramError(f"--{name} {count}: at least {least}")
    if options.optimizer != Options().optimizer and not options.train:
        raise ProgramError(f"--optimizer {options.optimizer} needs --train")
    if options.train and options.no_grad:
        raise ProgramError("--train needs gradients: leave out --no-grad")


def refuse_model_options(options: Options, why: str) -> None:
    """Raises ``ProgramError`` if an option is set that needs a model and its inputs."""
    for name in MODEL_OPTIONS:
        if getattr(options, name) != getattr(Options(), name):
            raise ProgramError(f"--{name.replace('_', '-')} needs a model and its inputs, and {why}")
