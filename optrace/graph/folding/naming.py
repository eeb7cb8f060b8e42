"""What to call a stretch of calls that is no module: where it stands in the program."""

from __future__ import annotations

from collections.abc import Sequence

from optrace.graph.nouns import Frame
from optrace.graph.opgraph import OpGraph


def place_name(graph: OpGraph, calls: Sequence[int]) -> str:
    """The function that makes all calls (``_single_tensor_adamw``), else the user's lines (``train.py:10-14``).

    Empty where neither is known.
    """
    rows = {graph.source_of(call) for call in calls}
    innermost = {frames[0] for row in rows if (frames := graph.sources[row].frames)}
    lines = {line for row in rows if (line := graph.sources[row].line) is not None}
    makers = {(frame.file, frame.function) for frame in innermost if not frame.user}
    if len(makers) == 1 and len(innermost - lines) == len(innermost):
        return makers.pop()[1]
    return _lines(lines)


def _lines(frames: set[Frame]) -> str:
    files = {frame.file for frame in frames}
    if len(files) != 1:
        return ""
    name = files.pop().replace("\\", "/").rpartition("/")[2]
    first, last = min(frame.line for frame in frames), max(frame.line for frame in frames)
    return f"{name}:{first}" if first == last else f"{name}:{first}-{last}"
