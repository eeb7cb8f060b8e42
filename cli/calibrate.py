"""``optrace calibrate``: measure this machine, print what came out, keep it as profiles."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from .console import console, show, table_of
from .errors import BadInput, bad_input
from .speaker import Speaker

if TYPE_CHECKING:
    from optrace.cost.host_profile import HostProfile
    from optrace.cost.profiles import GpuProfile
    from optrace.measuring.calibration.device import GpuCalibration

app = typer.Typer(add_completion=False, rich_markup_mode=None)

#: Seconds in all, and those that single ops on the GPU may take of them.
LIMIT_S, SWEEP_S = 100.0, 50.0


@app.command()
def calibrate(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR", help="with --save: write into DIR/gpu and DIR/host, not to where later runs look"
        ),
    ] = None,
    save: Annotated[
        bool, typer.Option("--save", help="keep the profiles, so that later runs pick them up")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print nothing but errors")] = False,
) -> None:
    """Measure this machine's GPU and host, in under two minutes, for --gpu and --host. Leave both alone meanwhile.

    Prints what differs from the shipped profiles. With --save later runs on this machine use the host profile by
    themselves, and the GPU's under its name.
    """
    started = time.monotonic()
    if folder is not None and not save:
        raise BadInput(f"{folder} is where --save writes: give --save too")
    _check_gpu()
    import torch

    from optrace.cost.profiles import DEFAULT_HOST, find_host, pricing
    from optrace.graph import TraceInfo
    from optrace.measuring.calibration.device import calibrate_gpu, shipped_profile
    from optrace.measuring.calibration.host import calibrate_host
    from optrace.measuring.calibration.machine import others_at_work
    from optrace.tracing import TraceError, open_session

    say = Speaker(quiet)
    for warning in others_at_work():
        say.warning(warning)
    with warnings.catch_warnings(), bad_input(TraceError), open_session("cuda") as session:
        # torch's profiler says so once a process, whatever is asked of it.
        warnings.filterwarnings("ignore", message=".*Profiler clears events")
        shipped = shipped_profile(torch.cuda.get_device_name())
        say.progress_line(f"{shipped.name}, torch {torch.__version__}: the host")
        target = pricing().target(TraceInfo(torch=str(torch.__version__)))
        host = calibrate_host(session, target)
        left = LIMIT_S - (time.monotonic() - started)
        found = calibrate_gpu(session, host, seconds=left, sweep_seconds=SWEEP_S, progress=say.progress_line)
    for warning in found.warnings:
        say.warning(warning)
    if not quiet:
        show(console(), "")
        show(console(), host_table(host, find_host(DEFAULT_HOST)))
        show(console(), "")
        show(console(), gpu_table(found))
        show(console(), "")
        show(console(), kinds_table(found))
        show(console(), "")
        show(console(), found.profile.note)
    if save:
        for line in _kept(found.profile, host, folder):
            say.line(line)
    else:
        say.line("Nothing was written: --save keeps this.")
    say.line(f"{time.monotonic() - started:.0f} s")


def _check_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise BadInput(
            "calibrate measures a CUDA GPU, and this machine has none: "
            "run it where there is one, then give the file it saves to --gpu or --host"
        )


def _kept(gpu: GpuProfile, host: HostProfile, folder: Path | None) -> Iterator[str]:
    """Write both profiles and say where they are."""
    from optrace.cost.profiles import profile_path
    from optrace.measuring.calibration.files import write_profile

    kept: tuple[tuple[str, GpuProfile | HostProfile], ...] = (("gpu", gpu), ("host", host))
    for kind, profile in kept:
        path = folder / kind / f"{profile.key}.toml" if folder else profile_path(kind, profile.key)
        try:
            write_profile(profile, path)
        except OSError as error:
            raise BadInput(f"cannot write the profile {path}: {error.strerror}") from error
        by_itself = (
            "" if folder else ("" if kind == "gpu" else " (runs on this machine use it by themselves)")
        )
        name = path if folder else profile.key
        yield f"wrote {path}: --{kind} {name}{by_itself}"


def host_table(host: HostProfile, shipped: HostProfile) -> Table:
    """The host's numbers beside those of the profile that stands in where none was calibrated."""
    table = table_of(
        f"host {host.key}: {host.name}",
        "measured",
        f"{shipped.key} ({'measured elsewhere' if shipped.measured else 'estimate'})",
    )
    for name, meaning in _HOST.items():
        table.add_row(meaning, _number(getattr(host, name)), _number(getattr(shipped, name)))
    for name, meaning in _BETWEEN.items():
        row = (getattr(profile.between, name, None) for profile in (host, shipped))
        table.add_row(meaning, *map(_number, row))
    for kind, us in sorted(host.class_us.items()):
        table.add_row(
            f"dispatch, {kind.replace('_', ' ')}, us", _number(us), _number(shipped.dispatch_of(kind))
        )
    for name, where in _NETWORKS.items():
        of_shipped = getattr(shipped, name) or shipped.network_us
        for kind, us in sorted(getattr(host, name).items()):
            table.add_row(
                f"  longer {where}, {kind.replace('_', ' ')}, us",
                _number(us),
                _number(of_shipped.get(kind, 0.0)),
            )
    return table


_HOST = {
    "python_us": "Python before a call, us",
    "backward_us": "before a call of a backward pass, us",
    "autograd_us": "autograd, us",
    "dispatch_us": "dispatch, elementwise, us",
    "view_us": "dispatch, view, us",
    "launch_us": "launch, us",
    "composed_us": "a further op inside of a call, us",
    "list_item_us": "a tensor of a list, us",
    "list_output_us": "a new tensor of a list, us",
    "first_of_pass_us": "the first call of a pass, us",
    "first_of_op_us": "the first call of an op in it, us",
    "first_of_pass_training_us": "the first call of a pass, in training, us",
    "first_of_op_training_us": "the first call of an op in it, in training, us",
    "sync_us": "a wait, us",
    "synchronize_us": "a synchronize after a step, us",
    "queue_depth": "launches that may be pending",
    "python_loop_us": "a turn of the reference loop, us",
}


_NETWORKS = {
    "network_us": "in a network",
    "network_training_us": "in one that trains",
    "network_backward_us": "in its backward pass",
}


_BETWEEN = {
    "call_us": "  a call of the module that ran before, us",
    "module_us": "  each module entered, us",
    "attention_us": "  fused attention, which chooses its kernel, us",
    "step_us": "  the first call of a step with an optimizer, us",
    "optimizer_us": "  a call of an optimizer, us",
    "optimizer_step_us": "  the first call of an optimizer, us",
}


def gpu_table(found: GpuCalibration) -> Table:
    """The GPU's figures beside the shipped ones; what ships without a measurement is no measurement."""
    ceilings, new, old = found.ceilings, found.profile, found.shipped
    table = table_of(
        f"gpu {new.key}: {new.name}",
        "measured",
        f"shipped ({'measured' if old.measured else 'not measured'})",
    )
    table.add_row(
        "HBM, TB/s", _number(ceilings.hbm_tb_s), _number(old.bandwidth_tb_s * old.bandwidth_efficiency)
    )
    for size, rate in ceilings.copies.items():
        table.add_row(f"  copy of {size >> 20} MiB, TB/s", _number(rate), "")
    table.add_row("L2, TB/s", _number(ceilings.l2_tb_s), _number(old.l2_bandwidth_tb_s))
    table.add_row(
        "L2 holds, MiB",
        _number(ceilings.l2_bytes / 2**20 if ceilings.l2_bytes else None),
        _number(old.l2_bytes / 2**20),
    )
    table.add_row("least kernel, us", _number(new.kernel_floor_us), _number(old.kernel_floor_us))
    table.add_row("launch period, us", _number(ceilings.launch_period_us), "")
    table.add_row(
        "replay of a CUDA graph, us", _number(ceilings.graph_replay_us), _number(old.graph_replay_us)
    )
    table.add_row("  each launch in it, us", _number(ceilings.graph_launch_us), _number(old.graph_launch_us))
    for what, rate in ceilings.matrix.items():
        peak = old.peak_tflops.get(what.partition(",")[0])
        table.add_row(f"{what}, TFLOP/s", _number(rate), f"peak {_number(peak)}" if peak else "")
    return table


def kinds_table(found: GpuCalibration) -> Table:
    """Kinds of kernel that were fitted: how far the model is from the timed launches, with each profile's rates."""
    table = table_of(
        "kinds of kernels, median distance from timed launches", "launches", "measured", "shipped"
    )
    for kind, fit in sorted(found.kinds.items(), key=lambda item: -item[1].launches):
        table.add_row(kind, str(fit.launches), f"{fit.after:.1%}", f"{fit.before:.1%}")
    return table


def _number(value: float | None) -> str:
    if value is None:
        return "not known"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"
