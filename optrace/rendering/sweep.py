"""A program on several GPUs, in several batch sizes and dtypes: rows for a table, one JSON document, one plot."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from optrace import units
from optrace.diagnosis.figures import figures_of
from optrace.rendering.errors import RenderError
from optrace.rendering.files import cannot_write, write_whole
from optrace.rendering.scoreboard import at_least
from optrace.report import Report

FORMAT = "optrace.sweep"
VERSION = 1

#: Suffixes that a plot can be written in, beside the JSON document.
PLOTS = (".pdf", ".png", ".svg")


@dataclass(frozen=True, slots=True)
class Case:
    """One case with the figures of a step. ``batch`` and ``dtype`` are None where the program's own were left.

    ``sample_us`` is the wall clock of one item of the batch. ``busy`` is the part of the wall clock in which the GPU
    works, ``mfu`` model FLOPs utilization; None for a run that takes no time. ``fits``: into the GPU's memory; None: it
    depends. ``complete``: no op is without a price.
    """

    gpu: str
    batch: int | None
    dtype: str | None
    launches: float
    hbm_bytes: float
    peak_bytes: float
    flops: float
    host_us: float
    device_us: float
    wall_us: float
    sample_us: float | None
    busy: float | None
    mfu: float | None
    fits: bool | None
    bottleneck: str | None
    complete: bool


def case_of(report: Report, gpu: str, batch: int | None, dtype: str | None) -> Case:
    """The figures of a report; of one step where several were recorded."""
    figures, steps = figures_of(report), report.graph.info.steps
    wall_us = figures.wall_us / steps
    return Case(
        gpu=gpu,
        batch=batch,
        dtype=dtype,
        launches=figures.launches / steps,
        hbm_bytes=figures.hbm_bytes / steps,
        peak_bytes=figures.peak_bytes,
        flops=figures.flops / steps,
        host_us=figures.host_us / steps,
        device_us=figures.device_us / steps,
        wall_us=wall_us,
        sample_us=wall_us / batch if batch else None,
        busy=report.gpu_busy_share,
        mfu=report.mfu,
        fits=report.fits,
        bottleneck=report.verdict.bottleneck,
        complete=report.complete,
    )


def sweep_json(program: str, cases: Sequence[Case]) -> bytes:
    """All cases as one document."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "program": program,
        "cases": [asdict(case) for case in cases],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


_FITS: dict[bool | None, str] = {True: "", False: " (too much)", None: " (tight)"}

#: Columns of the table: what each is called, and a case's cell. A sum that leaves calls out says so.
COLUMNS: tuple[tuple[str, Callable[[Case], str]], ...] = (
    ("dtype", lambda case: case.dtype or "-"),
    ("batch", lambda case: "-" if case.batch is None else units.count(case.batch)),
    ("gpu", lambda case: case.gpu),
    ("launches", lambda case: at_least(units.count(case.launches), case.complete)),
    ("HBM", lambda case: at_least(units.moved(case.hbm_bytes), case.complete)),
    (
        "peak memory",
        lambda case: units.allocated(case.peak_bytes) + _FITS[case.fits],
    ),
    ("host", lambda case: units.predicted_us(case.host_us)),
    ("device", lambda case: at_least(units.predicted_us(case.device_us), case.complete)),
    ("wall", lambda case: at_least(units.predicted_us(case.wall_us), case.complete)),
    (
        "a sample",
        lambda case: (
            "-" if case.sample_us is None else at_least(units.predicted_us(case.sample_us), case.complete)
        ),
    ),
    ("GPU busy", lambda case: "-" if case.busy is None else units.share(case.busy)),
    ("MFU", lambda case: "-" if case.mfu is None else units.share(case.mfu)),
    ("bound", lambda case: case.bottleneck or "-"),
)


def rows(cases: Sequence[Case]) -> tuple[list[str], list[list[str]]]:
    """A heading and a row a case."""
    return [name for name, _ in COLUMNS], [[cell(case) for _, cell in COLUMNS] for case in cases]


def check_plot(path: Path) -> None:
    """Raises ``RenderError`` where no plot can be written."""
    if path.suffix.lower() not in (*PLOTS, ".json"):
        choices = ", ".join((*PLOTS, ".json"))
        raise RenderError(f"cannot write {path}: no plot is made for {path.suffix!r} (one of {choices})")
    reason = cannot_write(path)
    if reason:
        raise RenderError(f"cannot write {path}: {reason}")
    if path.suffix.lower() != ".json":
        _pyplot(path)


def write_sweep(program: str, cases: Sequence[Case], path: Path) -> None:
    """The plot, or the JSON document. Raises ``RenderError`` where it cannot be written."""
    is_json = path.suffix.lower() == ".json"
    data = sweep_json(program, cases) if is_json else _plot(program, cases, path)
    try:
        write_whole(path, data)
    except OSError as error:
        raise RenderError(f"cannot write {path}: {error.strerror}") from None


def _pyplot(path: Path) -> Any:
    try:
        import matplotlib
    except ImportError:
        raise RenderError(
            f"cannot write {path}: plots are drawn by matplotlib, which is not installed "
            "(pip install 'torch-optrace[plot]')"
        ) from None
    matplotlib.use("agg")
    # The same file from the same figures.
    matplotlib.rcParams["svg.hashsalt"] = "optrace"
    from matplotlib import pyplot

    return pyplot


def _plot(program: str, cases: Sequence[Case], path: Path) -> bytes:
    """Time of a sample, and the GPU's use, over batch sizes; with one size, over the GPUs. A colour a GPU, a stroke a
    dtype."""
    pyplot = _pyplot(path)
    figure, (time, use) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    gpus = list(dict.fromkeys(case.gpu for case in cases))
    dtypes = list(dict.fromkeys(case.dtype for case in cases))
    over_batches = len({case.batch for case in cases}) > 1
    for dtype in dtypes:
        if over_batches:
            for gpu in gpus:
                line = [case for case in cases if (case.gpu, case.dtype) == (gpu, dtype)]
                style: dict[str, Any] = {
                    "color": f"C{gpus.index(gpu)}",
                    "linestyle": ("-", "--", ":", "-.")[dtypes.index(dtype) % 4],
                    "marker": "o",
                    "label": " ".join(filter(None, (gpu, dtype))),
                }
                sizes = [case.batch for case in line]
                time.plot(sizes, [case.sample_us for case in line], **style)
                use.plot(sizes, [100 * (case.busy or 0.0) for case in line], **style)
        else:
            line = [case for case in cases if case.dtype == dtype]
            style = {"marker": "o", "linestyle": "none", "label": dtype or "a step"}
            time.plot([case.gpu for case in line], [case.wall_us for case in line], **style)
            use.plot([case.gpu for case in line], [100 * (case.busy or 0.0) for case in line], **style)
    for axes, label in (
        (time, "predicted us a sample" if over_batches else "predicted us a step"),
        (use, "predicted: GPU busy, % of the wall clock"),
    ):
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        if over_batches:
            axes.set_xscale("log", base=2)
            axes.set_xlabel("batch")
            axes.set_xticks(sorted({case.batch for case in cases if case.batch}))
            axes.xaxis.set_major_formatter("{x:.0f}")
            axes.minorticks_off()
    time.set_yscale("log")
    use.set_ylim(0, 105)
    time.legend(frameon=False, fontsize="small")
    figure.suptitle(program, parse_math=False)  # a file's name may hold a $
    drawn = io.BytesIO()
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    figure.savefig(drawn, format=path.suffix[1:].lower(), metadata=metadata)
    pyplot.close(figure)
    return drawn.getvalue()
