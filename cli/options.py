"""Choices that the command line knows without importing torch, options that several commands take, and help by
groups of options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial, wraps
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from .errors import BadInput

T = TypeVar("T")


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


#: Headings of the help text, in their order.
_HEADINGS = ("Arguments", "Options", "Running", "Model and inputs", "Prices")

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


#: Options that several commands take, by the parameter that each fills, with its type and default: where the program
#: runs (``open_session``), what is run (``optrace.program.Options``), what it is priced with (``pricing``).
_PLACE: Mapping[str, tuple[Any, Any]] = {
    "mode": (ModeOption, Mode.AUTO),
    "device": (DeviceOption, Device.CUDA),
    "assume": (AssumeOption, Assume.ERROR),
}
_PROGRAM: Mapping[str, tuple[Any, Any]] = {
    "steps": (StepsOption, 1),
    "warmup": (WarmupOption, None),
    "train": (TrainOption, False),
    "optimizer": (OptimizerOption, "adamw"),
    "dtype": (DtypeOption, None),
    "autocast": (AutocastOption, False),
    "no_grad": (NoGradOption, False),
    "batch": (BatchOption, None),
}
_PRICES: Mapping[str, tuple[Any, Any]] = {
    "gpu": (GpuOption, None),
    "host": (HostOption, None),
    "dispatch_us": (DispatchOption, None),
    "launch_us": (LaunchOption, None),
    "bandwidth_tb_s": (BandwidthOption, None),
}


@dataclass(frozen=True, slots=True)
class Shared:
    """What was given of the shared options. ``place`` are options of ``open_session``, ``program`` those of
    ``optrace.program.Options``, ``prices`` those of ``pricing`` that were given."""

    place: dict[str, Any]
    program: dict[str, Any]
    prices: dict[str, Any]


def with_shared_options(*, without: Collection[str] = ()) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a command the shared options, but for those of these names, and hand them to it as ``shared``."""
    shared = {
        name: option for name, option in {**_PLACE, **_PROGRAM, **_PRICES}.items() if name not in without
    }

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        @wraps(function)
        def command(**given: Any) -> T:
            chosen = {name: given.pop(name) for name in shared}
            return function(
                **given,
                shared=Shared(
                    {name: value.value for name, value in chosen.items() if name in _PLACE},
                    {name: value for name, value in chosen.items() if name in _PROGRAM},
                    {name: value for name, value in chosen.items() if name in _PRICES and value is not None},
                ),
            )

        own = inspect.signature(function, eval_str=True)
        parameters = [
            *(one for one in own.parameters.values() if one.name != "shared"),
            *(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
                for name, (kind, default) in shared.items()
            ),
        ]
        command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by typer
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        return command

    return decorate


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
        for heading in sorted(groups, key=_HEADINGS.index):
            with formatter.section(heading):
                formatter.write_dl(groups[heading])


def batch_sizes(text: str | None) -> tuple[int, ...]:
    """The numbers of ``1,8,64``, each once, in this order. Raises ``BadInput`` for anything else."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise BadInput(f"--batch {text}: a whole number, or several with commas between (1,8,64)")
    return tuple(dict.fromkeys(int(part) for part in parts))
