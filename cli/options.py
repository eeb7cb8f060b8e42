"""Choices that the command line knows without importing torch, options that several commands take, and help by
groups of options."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from .errors import BadInput


class Mode(StrEnum):
    """As ``optrace.tracing.MODES``."""

    AUTO = "auto"
    FAKE = "fake"
    CPU = "cpu"
    CUDA = "cuda"


class Device(StrEnum):
    """As ``optrace.tracing.DEVICES``."""

    CUDA = "cuda"
    CPU = "cpu"


class Assume(StrEnum):
    """What a fake tensor answers when the program asks for its value."""

    ERROR = "error"
    ZERO = "zero"
    WORST = "worst"


# Options under a heading of the help text.
_running = partial(typer.Option, rich_help_panel="Running")
_model = partial(typer.Option, rich_help_panel="Model and inputs")
_price = partial(typer.Option, rich_help_panel="Prices")


def _gpu_names(incomplete: str) -> list[str]:
    """For a shell: the GPU profiles whose name begins so."""
    from optrace.cost.profiles import gpu_profiles

    return [name for name in gpu_profiles() if name.startswith(incomplete)]


def _host_names(incomplete: str) -> list[str]:
    """For a shell: the host profiles whose name begins so."""
    from optrace.cost.profiles import host_profiles

    return [name for name in host_profiles() if name.startswith(incomplete)]


ModeOption = Annotated[
    Mode,
    _running("--mode", help="cuda: run on a GPU; fake: compute nothing, needs none; cpu: compute on the CPU"),
]
DeviceOption = Annotated[Device, _running("--device", help="where to put a model and its inputs")]
AssumeOption = Annotated[Assume, _running("--assume", help="what .item() answers in fake mode")]
StepsOption = Annotated[int, _running("--steps", metavar="N", help="steps to record")]
WarmupOption = Annotated[
    int | None,
    _running(
        "--warmup", metavar="N", help="steps to run before, unrecorded  [default: 1 with --train, else 0]"
    ),
]
TrainOption = Annotated[bool, _model("--train", help="loss, backward and an optimizer step too")]
OptimizerOption = Annotated[str, _model("--optimizer", metavar="NAME", help="adamw, sgd, adam, ...")]
DtypeOption = Annotated[
    str | None,
    _model("--dtype", metavar="DTYPE", help="of weights and inputs; with --autocast, the dtype to cast to"),
]
AutocastOption = Annotated[bool, _model("--autocast", help="run the forward pass under torch.autocast")]
NoGradOption = Annotated[bool, _model("--no-grad", help="run the forward pass under torch.no_grad")]
BatchesOption = Annotated[
    str | None,
    _model(
        "--batch",
        metavar="N[,N...]",
        help="call get_inputs(batch=N); several: a page that switches between them",
    ),
]
BatchOption = Annotated[int | None, _model("--batch", metavar="N", help="call get_inputs(batch=N)")]
GpuOption = Annotated[
    str | None,
    _price(
        "--gpu",
        metavar="NAME",
        help="GPU to price for  [default: the one that runs, else h200]",
        autocompletion=_gpu_names,
    ),
]
HostOption = Annotated[
    str | None, _price("--host", metavar="NAME", help="host profile", autocompletion=_host_names)
]
DispatchOption = Annotated[
    float | None, _price("--dispatch-us", metavar="US", help="host time to dispatch an op")
]
LaunchOption = Annotated[
    float | None, _price("--launch-us", metavar="US", help="host time to launch a kernel")
]
BandwidthOption = Annotated[float | None, _price("--bandwidth-tb", metavar="TB/S", help="memory bandwidth")]


class Shown(StrEnum):
    """As ``optrace.rendering.options.SHOWN``."""

    FUSION = "fusion"


class ProgramCommand(TyperCommand):
    """A command whose words after ``--`` are the program's own: ``ctx.obj`` holds them, or None without ``--``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            cut = args.index("--")
            args, ctx.obj = args[:cut], tuple(args[cut + 1 :])
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the same whatever was given
        return ["[OPTIONS] TARGET [-- ARGUMENTS OF THE PROGRAM]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Options under the heading that each names."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                groups.setdefault(getattr(param, "rich_help_panel", None) or "Options", []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def batch_sizes(text: str | None) -> tuple[int, ...]:
    """The numbers of ``1,8,64``, each once, in this order. Raises ``BadInput`` for anything else."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise BadInput(f"--batch {text}: a whole number, or several with commas between (1,8,64)")
    return tuple(dict.fromkeys(int(part) for part in parts))
