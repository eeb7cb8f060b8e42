"""Which line of the user's program a call came from.

A frame is the user's own unless its file belongs to torch, to an installed package, to the standard
library or to optrace. Frames are looked up for each call, so what is known of a line is kept by its code
object and instruction.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from types import CodeType, FrameType

from optrace.graph import Frame, Source

_LIBRARY_ROOTS = tuple(
    {
        os.path.realpath(path) + os.sep
        for path in (
            *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
            *(path for path in sys.path if path.endswith(("site-packages", "dist-packages"))),
        )
    }
)
_OWN_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OWN_COMMAND = os.path.join(os.path.dirname(os.path.dirname(_OWN_ROOT)), "cli") + os.sep

#: Frames kept between a call and the user's line.
_MAX_FRAMES = 40


def is_own_code(file: str) -> bool:
    """Whether a file is optrace's own."""
    return file.startswith((_OWN_ROOT, _OWN_COMMAND))


def shortened(file: str) -> str:
    """A path as people say it: from the working folder, or from the folder that a library was installed in."""
    if file.startswith("<"):
        return file
    path = os.path.realpath(file)
    here = os.path.realpath(os.getcwd()) + os.sep
    for root in (here, *sorted(_LIBRARY_ROOTS, key=len, reverse=True)):
        if path.startswith(root):
            return path[len(root) :]
    return path


def is_user_code(file: str) -> bool:
    """Whether a file is the user's: neither installed, nor the standard library, nor optrace."""
    if file.startswith("<"):
        # Notebook cells and doctests are the user's; generated code (namedtuples, fx) names itself "<eval...>".
        return file.startswith(("<ipython", "<stdin", "<doctest", "<cell"))
    path = os.path.realpath(file)
    return not is_own_code(path) and not path.startswith(_LIBRARY_ROOTS)


#: torch's own machinery between a call and the code that made it.
_MACHINERY = tuple(
    os.path.join("torch", *parts)
    for parts in (("utils", "_"), ("_",), ("nn", "modules", "module.py"), ("overrides.py",))
)


class SourceFinder:
    """Finds the ``Source`` of the call being dispatched, with everything it learnt on the way kept.

    This runs for each call, so a line is looked at once (by code object and instruction), a stack is known
    by the numbers of its lines, and the same stack gives the same object.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[CodeType, int], int] = {}
        self._frames: list[Frame] = []
        self._sources: dict[tuple[int, ...], Source] = {(): Source()}

    def find(self, frame: FrameType | None) -> Source:
        """The frames from ``frame`` outwards to the first of the user's own code; torch's dispatch
        machinery and optrace left out. Empty where no frame is the user's (a backward thread)."""
        lines, frames = self._lines, self._frames
        found: list[int] = []
        while frame is not None and len(found) < _MAX_FRAMES:
            key = (frame.f_code, frame.f_lasti)
            number = lines.get(key)
            if number is None:
                number = lines[key] = self._look_at(frame)
            if number >= 0:
                found.append(number)
                if frames[number].user:
                    stack = tuple(found)
                    source = self._sources.get(stack)
                    if source is None:
                        source = self._sources[stack] = Source(tuple(frames[n] for n in found))
                    return source
            frame = frame.f_back
        return self._sources[()]

    def _look_at(self, frame: FrameType) -> int:
        """The number of a frame's line, or -1 for one that is not shown."""
        file = frame.f_code.co_filename
        if is_own_code(os.path.abspath(file)) or any(part in file for part in _MACHINERY):
            return -1
        self._frames.append(
            Frame(shortened(file), frame.f_lineno, frame.f_code.co_qualname, is_user_code(file))
        )
        return len(self._frames) - 1
