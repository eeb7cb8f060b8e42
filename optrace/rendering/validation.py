"""The validation view: the picture coloured by how far the predicted device time of each node is from the measured one.

Blue is too fast, orange too slow, and the stronger the further off (after ColorBrewer's PuOr and RdBu, which the
colour-blind tell apart); the sign stands on the node too. Predicted figures are grey with a ``~``, measured ones bold
and without.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from optrace import units
from optrace.graph.measured import MeasuredRun
from optrace.rendering.boxes import Box
from optrace.rendering.details import node_details
from optrace.rendering.looks import box_look, box_title, node_look, output_text
from optrace.rendering.markup import cell, font, paragraph, plain, shortened, table
from optrace.rendering.palette import INK, QUIET
from optrace.rendering.picture import PictureNode
from optrace.report import Report


@dataclass(frozen=True, slots=True)
class Validation:
    """What was measured of the run on ``device``, in microseconds: ``call_us`` the device time of each call by the
    profiler, ``wall_us`` the step's wall clock, ``event_us`` the calls' times by CUDA events (empty where not known).
    ``run``: when each launch ran, where that was kept.
    """

    device: str
    call_us: Sequence[float]
    wall_us: float
    event_us: Sequence[float] = ()
    run: MeasuredRun | None = None


@dataclass(frozen=True, slots=True)
class Shade:
    """How a node looks whose error is at most ``most`` (signed, relative)."""

    most: float
    fill: str
    text: str
    meaning: str


#: From far too fast to far too slow.
SHADES = (
    Shade(-0.30, "#2166ac", "#ffffff", "predicted more than 30 % too fast"),
    Shade(-0.15, "#67a9cf", "#10151a", "15 to 30 % too fast"),
    Shade(-0.05, "#d1e5f0", "#1a1a1a", "5 to 15 % too fast"),
    Shade(0.05, "#ffffff", "#1a1a1a", "within 5 %"),
    Shade(0.15, "#fee0b6", "#1a1a1a", "5 to 15 % too slow"),
    Shade(0.30, "#f1a340", "#1a1a1a", "15 to 30 % too slow"),
    Shade(math.inf, "#b35806", "#ffffff", "more than 30 % too slow"),
)

_BORDER = "#6e6e6e"


def shade_of(predicted_us: float, measured_us: float) -> Shade:
    """The shade of an error; a time predicted where none was measured is too slow without end."""
    error = error_of(predicted_us, measured_us)
    return next(shade for shade in SHADES if error <= shade.most)


def error_of(predicted_us: float, measured_us: float) -> float:
    """Relative and signed; infinite where nothing was measured and something predicted."""
    if not measured_us:
        return math.inf if predicted_us else 0.0
    return predicted_us / measured_us - 1


def measured_text(us: float) -> str:
    """A measured time: no ``~``.

    >>> measured_text(12.34)
    '12.3 us'
    """
    return units.predicted_us(us).removeprefix("~")


def error_text(predicted_us: float, measured_us: float) -> str:
    """
    >>> error_text(11.0, 10.0), error_text(9.99, 10.0), error_text(1.0, 0.0)
    ('+10 %', '0 %', 'not launched')
    """
    error = error_of(predicted_us, measured_us)
    if math.isinf(error):
        return "not launched"
    percent = round(100 * error)
    return f"{percent:+d} %" if percent else "0 %"


def validated_node(report: Report, view: Validation, node: PictureNode, caption: str) -> dict[str, str]:
    """A node with both times; one that launched nothing, and was said to, as in any picture."""
    measured = _measured(view, node)
    predicted = node.cost.device_us
    look = node_look(report, node, caption)
    if node.is_quiet and not measured:
        return look
    shade = shade_of(predicted, measured)
    total = sum(view.call_us)
    share = measured / total if total else 0.0
    size = math.sqrt(min(1.0, share))
    letters = 10 + 10 * size
    small = max(8.0, 0.64 * letters)
    name = f"{node.label} x{node.repeats:,}" if node.repeats > 1 else node.label
    lines = [
        font(shortened(caption), size=small),
        font(shortened(name), size=letters, bold=True),
        font(shortened(_contents(report, node)), size=small),
        font(f"predicted {units.predicted_us(predicted)}", size=small, color=_faint(shade)),
        font(f"measured {measured_text(measured)}", size=small, bold=True),
        font(error_text(predicted, measured), size=small),
    ]
    told = [
        f"device time: predicted {units.predicted_us(predicted)}, measured {measured_text(measured)} "
        f"({error_text(predicted, measured)})",
        *_by_events(view, node),
        *node_details(report, node),
    ]
    return look | {
        "label": f"<{table(cell(line, ALIGN='CENTER') for line in lines if line)}>",
        "tooltip": plain("\n".join(told)),
        "shape": "box",
        "style": "rounded,filled,dashed" if node.cost.guesses or node.cost.unpriced else "rounded,filled",
        "fillcolor": shade.fill,
        "fontcolor": shade.text,
        "color": _BORDER,
        "penwidth": f"{0.8 + 3.2 * size:.2f}",
        "width": f"{0.7 + 1.7 * size:.2f}",
        "height": f"{0.3 + 1.0 * size:.2f}",
        "margin": f"{0.1 + 0.06 * size:.3f},{0.045 + 0.06 * size:.3f}",
    }


def _faint(shade: Shade) -> str:
    return QUIET if shade.fill == "#ffffff" else shade.text


def _contents(report: Report, node: PictureNode) -> str:
    return output_text(report, node) if node.kind == "op" else units.counted(node.cost.calls, "call")


def _measured(view: Validation, node: PictureNode) -> float:
    return sum(view.call_us[call] for call in node.calls)


def _by_events(view: Validation, node: PictureNode) -> Iterator[str]:
    if view.event_us:
        yield f"by CUDA events: {measured_text(sum(view.event_us[call] for call in node.calls))}"


def validated_box(report: Report, view: Validation, box: Box, *, depth: int) -> dict[str, str]:
    """The box of a phase or a module, with both times of what is in it."""
    measured = _inside(view, box)
    predicted = box.cost.device_us
    rest = ""
    if predicted or measured:
        rest = font(f"  predicted {units.predicted_us(predicted)}, ", size=10, color=QUIET)
        rest += font(f"measured {measured_text(measured)}", size=10, color=INK, bold=True)
        rest += font(f", {error_text(predicted, measured)}", size=10, color=QUIET)
    return box_look(report, box, depth=depth) | {"label": f"<{box_title(box, rest)}>"}


def _inside(view: Validation, box: Box) -> float:
    own = sum(_measured(view, node) for node in box.nodes)
    return own + sum(_inside(view, inner) for inner in box.boxes)


def validation_legend(report: Report, view: Validation, notes: tuple[str, ...]) -> str:
    """Program, both times of the step, and what the colours say."""
    info = report.graph.info
    predicted = report.totals["device_us"].value
    measured = sum(view.call_us)
    shares = _shares(report, view)
    rows = [
        font(info.program or "program", size=18, bold=True)
        + font(
            f"   predicted (~) against measured on {view.device}{f', torch {info.torch}' if info.torch else ''}",
            size=10,
            color=QUIET,
        ),
        _both("wall clock", report.timeline.wall_us, view.wall_us),
        _both("device time of calls", predicted, measured),
        font(
            "Colour: the error of the predicted device time. Size: part of the measured device time.", size=10
        ),
        table(
            (
                cell(
                    "",
                    BGCOLOR=shade.fill,
                    BORDER="1",
                    COLOR=_BORDER,
                    WIDTH="22",
                    HEIGHT="10",
                    FIXEDSIZE="TRUE",
                )
                + cell(font(f" {shade.meaning}", size=10, color=INK), WIDTH="190")
                + cell(
                    font(f"   {units.share(share)} of the measured device time", size=10, color=QUIET),
                    WIDTH="388",
                )
                for shade, share in zip(SHADES, shares, strict=True)
            ),
            CELLPADDING="1",
        ),
        *(font(paragraph(note, 118), size=10, color=INK) for note in notes),
    ]
    return f"<{table((cell(row) for row in rows), CELLPADDING='4')}>"


def _both(name: str, predicted_us: float, measured_us: float) -> str:
    return (
        font(f"{name}: predicted {units.predicted_us(predicted_us)}, ", size=12, color=QUIET)
        + font(f"measured {measured_text(measured_us)}", size=12, color=INK, bold=True)
        + font(f" ({error_text(predicted_us, measured_us)})", size=12, color=QUIET)
    )


def _shares(report: Report, view: Validation) -> list[float]:
    """The part of the measured device time of the calls in each shade."""
    parts = dict.fromkeys(SHADES, 0.0)
    for cost, measured in zip(report.costs, view.call_us, strict=True):
        if measured or cost.device_us:
            parts[shade_of(cost.device_us or 0.0, measured)] += measured
    total = sum(parts.values())
    return [part / total if total else 0.0 for part in parts.values()]
