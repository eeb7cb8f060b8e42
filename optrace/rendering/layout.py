"""The layout program: the system's ``dot``, else the ``graphviz-pure`` that comes with the install.

It is fed DOT text and must answer in a limited time; a picture that takes longer is drawn coarser, and the
output says so.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from optrace.rendering import dot
from optrace.rendering.collapse import Folder
from optrace.rendering.errors import LayoutTooSlowError, RenderError
from optrace.rendering.options import DrawOptions, Rendered
from optrace.report import Report

#: Pixels an inch, and the largest side in inches, of a bitmap: past 32,767 pixels many viewers give up.
_PNG_DPI = 144
_PNG_INCHES = 220

_FLAGS = {"png": (f"-Gdpi={_PNG_DPI}", f"-Gsize={_PNG_INCHES},{_PNG_INCHES}")}


def render_svg(report: Report, options: DrawOptions) -> Rendered:
    return _render(report, options, "svg")


def render_png(report: Report, options: DrawOptions) -> Rendered:
    return _render(report, options, "png")


def render_pdf(report: Report, options: DrawOptions) -> Rendered:
    return _render(report, options, "pdf")


def _render(report: Report, options: DrawOptions, format: str) -> Rendered:
    """The finest picture that fits and that the layout program can do in time."""
    program = layout_program(format)
    notes: tuple[str, ...] = ()
    slow: LayoutTooSlowError | None = None
    for picture in Folder(report, options).pictures():
        source, told = dot.draw(report, picture, options, notes)
        try:
            return Rendered(lay_out(source, format, options.layout_timeout_s, program), told)
        except LayoutTooSlowError as error:
            slow = error
            notes = (
                f"The layout of {len(picture.graph):,} nodes took longer than {options.layout_timeout_s:g} s, "
                "so the picture is drawn coarser.",
            )
    assert slow is not None
    raise slow


def lay_out(source: str, format: str, timeout_s: float, program: Path | None = None) -> bytes:
    """DOT text laid out as ``format`` (``svg``, ``png``, ``pdf``)."""
    program = program or layout_program(format)
    command = [str(program), f"-T{format}", *_FLAGS.get(format, ())]
    try:
        done = subprocess.run(
            command, input=source.encode(), capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise LayoutTooSlowError(
            f"{program.name} did not lay the picture out within {timeout_s:g} s; "
            "fold it further (--depth 0), or write .dot, .json or .txt, which need no layout"
        ) from None
    except OSError as error:
        raise RenderError(f"cannot run the layout program {program}: {error.strerror or error}") from None
    if done.returncode or not done.stdout:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        reason = " ".join(said[:4]) if said else f"exit status {done.returncode} and no output"
        raise RenderError(f"the layout program {program} failed: {reason}; .dot, .json and .txt need none")
    return done.stdout


def layout_program(format: str) -> Path:
    """The program to lay ``format`` out with; ``RenderError`` where there is none."""
    system = shutil.which("dot")
    if system:
        return Path(system)
    if format == "pdf":
        raise RenderError(
            "pdf needs Graphviz's own dot on the PATH, which this machine lacks "
            "(https://graphviz.org/download); .svg and .png do not"
        )
    for place in _bundled_places():
        if place.is_file():
            return place
    raise RenderError(
        f"{format} needs a layout program and there is none: neither dot on the PATH nor graphviz-pure "
        f"beside {sys.executable}; pip install graphviz-pure, or write .dot, .json or .txt"
    )


def _bundled_places() -> Iterator[Path]:
    """Where pip puts the wheel's one executable: beside the interpreter, in a user's or target's folder."""
    name = "graphviz-pure.exe" if sys.platform == "win32" else "graphviz-pure"
    try:
        wheel = metadata.distribution("graphviz-pure")
    except metadata.PackageNotFoundError:
        pass
    else:
        # `pip install --target` moves the file and lists it where it was to be.
        listed = (file.locate() for file in wheel.files or () if file.name == name)
        yield from (Path(str(place)) for place in (*listed, wheel.locate_file(f"bin/{name}")))
    yield Path(sysconfig.get_path("scripts")) / name
    yield Path(sys.executable).parent / name
    found = shutil.which(name)
    if found:
        yield Path(found)
