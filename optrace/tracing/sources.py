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


def is_user_code(file: str) -> bool:
    """Whether a file is the user's: neither installed, nor the standard library, nor optrace."""
    if file.startswith("<"):
        # Notebook cells and doctests are the user's; generated code (namedtuples, fx) names itself "<eval...>".
        return file.startswith(("<ipython", "<stdin", "<doctest", "<cell"))
    path = os.path.realpath(file)
    return not is_own_code(path) and not path.startswith(_LIBRARY_ROOTS)


class SourceFinder:
    """Finds the ``Source`` of the call being dispatched, with everything it learnt on the way kept."""

    def __init__(self) -> None:
        self._frames: dict[tuple[CodeType, int], Frame] = {}
        self._skipped: dict[CodeType, bool] = {}
        self._user: dict[str, bool] = {}
        self._sources: dict[tuple[Frame, ...], Source] = {}

    def find(self, frame: FrameType | None) -> Source:
        """The frames from ``frame`` outwards to the first of the user's own code; torch's dispatch
        machinery and optrace left out. Empty where no frame is the user's (a backward thread)."""
        found: list[Frame] = []
        while frame is not None and len(found) < _MAX_FRAMES:
            code = frame.f_code
            if not self._skip(code):
                known = self._frame(code, frame.f_lasti, frame)
                found.append(known)
                if known.user:
                    key = tuple(found)
                    source = self._sources.get(key)
                    if source is None:
                        source = self._sources[key] = Source(key)
                    return source
            frame = frame.f_back
        return Source()

    def _skip(self, code: CodeType) -> bool:
        skip = self._skipped.get(code)
        if skip is None:
            file = code.co_filename
            skip = self._skipped[code] = (
                is_own_code(os.path.abspath(file))
                or f"torch{os.sep}utils{os.sep}_" in file
                or f"torch{os.sep}_" in file
                or f"torch{os.sep}nn{os.sep}modules{os.sep}module.py" in file
                or f"torch{os.sep}overrides.py" in file
            )
        return skip

    def _frame(self, code: CodeType, instruction: int, frame: FrameType) -> Frame:
        key = (code, instruction)
        known = self._frames.get(key)
        if known is None:
            file = code.co_filename
            user = self._user.get(file)
            if user is None:
                user = self._user[file] = is_user_code(file)
            known = self._frames[key] = Frame(file, frame.f_lineno, code.co_qualname, user)
        return known
