"""Which line of the user's program a call came from.

A frame is the user's own unless its file belongs to torch, to an installed package, to the standard
library or to optrace. Frames are looked up for each call, so what is known of a line is kept by its code
object and instruction.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import TypeAlias

from optrace.graph import Frame, Source
from optrace.tracing.modules import Activation
from optrace.tracing.phases import from_optimizer

_LIBRARY_ROOTS = tuple(
    {
        os.path.realpath(path) + os.sep
        for path in (
            # Commands, as this one is where it was installed, are nobody's program.
            *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")),
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
    """A path as people say it: from the working folder, or from the folder that a library was installed in, even where
    that lies in the working folder, as a virtual environment may."""
    if file.startswith("<"):
        return file
    path = os.path.realpath(file)
    here = os.path.realpath(os.getcwd()) + os.sep
    for root in sorted({here, *_LIBRARY_ROOTS}, key=len, reverse=True):
        if path.startswith(root):
            return path[len(root) :]
    return path


def file_of(short: str) -> str:
    """The file that ``shortened`` made a path of; the path itself where it is not there."""
    for root in (os.path.realpath(os.getcwd()) + os.sep, *_LIBRARY_ROOTS):
        if os.path.isfile(root + short):
            return root + short
    return short


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


@dataclass(slots=True)
class Place:
    """A stack that calls came from. ``row`` is for the one who keeps sources in a table; -1 before."""

    source: Source
    has_line: bool
    in_optimizer: bool
    row: int = -1


#: The stack of a call, as short as it is met: the number of the stack outside the innermost module being called, and the
#: numbers of the lines inside.
Walk: TypeAlias = tuple[int, ...]

_HIDDEN, _LIBRARY, _USER = 0, 1, 2

#: The function of torch that enters autograd's engine.
_ENTERS_ENGINE = ("_engine_run_backward", os.path.join("torch", "autograd", "graph.py"))


class SourceFinder:
    """Finds the place of the call being dispatched, with everything it learnt on the way kept.

    This runs for each call, so a line is looked at once (by code object and instruction), a stack is known
    by the numbers of its lines, and the same stack gives the same object. From the frame that called a module
    outwards a stack stays as it is while the module runs, so it is walked once an activation.
    """

    def __init__(self) -> None:
        # By address: hashing a code object hashes all its constants. The object is kept beside.
        self._codes: dict[int, tuple[int, dict[int, int], CodeType]] = {}
        self._frames: list[Frame] = []
        #: What is known by now, by walk.
        self.places: dict[Walk, Place] = {}
        # The frame that entered autograd's engine, by backward pass, address and modules being called; what it is walked to.
        self._engine = (-1, 0, 0)
        self._engine_walk: Walk = ()
        self._chains: list[tuple[int, ...]] = [()]
        self._chain_numbers: dict[tuple[int, ...], int] = {(): 0}

    def find(self, frame: FrameType | None, activations: Sequence[Activation] = ()) -> Place:
        """The frames from ``frame`` outwards to the first of the user's own code; torch's dispatch
        machinery and optrace left out. Empty where no frame is the user's (a backward thread)."""
        return self.place(self.walk(frame, activations))

    def place(self, walk: Walk) -> Place:
        """What is known of the stack that was walked."""
        place = self.places.get(walk)
        if place is None:
            place = self.places[walk] = self._place((*walk[1:], *self._chains[walk[0]]))
        return place

    def walk(self, frame: FrameType | None, activations: Sequence[Activation], task: int = -1) -> Walk:
        """The stack from ``frame`` outwards, for ``place``; ``task`` is the backward pass that runs.

        While a backward pass runs, the frame that entered autograd's engine stays, and so does all outside it: it is
        walked once a pass.
        """
        if task == -1 or frame is None:
            return self._walk(frame, activations, len(activations) - 1)
        engine = (task, id(frame), len(activations))
        if engine == self._engine:
            return self._engine_walk
        walk = self._walk(frame, activations, len(activations) - 1)
        code = frame.f_code
        if code.co_name == _ENTERS_ENGINE[0] and code.co_filename.endswith(_ENTERS_ENGINE[1]):
            self._engine, self._engine_walk = engine, walk
        return walk

    def _walk(self, frame: FrameType | None, activations: Sequence[Activation], inner: int) -> Walk:
        """``inner`` is the place of the innermost activation that the stack may meet."""
        boundary = activations[inner].frame_address if inner >= 0 else 0
        codes = self._codes
        found = [0]
        while frame is not None:
            code = frame.f_code
            known = codes.get(id(code))
            if known is None:
                known = self._enter(code)
            kind, lines, _ = known
            if kind:
                instruction = frame.f_lasti
                number = lines.get(instruction)
                if number is None:
                    number = lines[instruction] = self._look_at(frame, kind == _USER)
                found.append(number)
                if kind == _USER:
                    break
            elif id(frame) == boundary:
                found[0] = self._chain(frame.f_back, activations, inner)
                break
            frame = frame.f_back
        return tuple(found)

    def _chain(self, frame: FrameType | None, activations: Sequence[Activation], at: int) -> int:
        """The number of the stack outside an activation."""
        activation = activations[at]
        if activation.chain is None:
            key = self._walk(frame, activations, at - 1)
            lines = (*key[1:], *self._chains[key[0]])
            number = self._chain_numbers.get(lines)
            if number is None:
                number = self._chain_numbers[lines] = len(self._chains)
                self._chains.append(lines)
            activation.chain = number
        return activation.chain

    def _place(self, lines: tuple[int, ...]) -> Place:
        frames = tuple(self._frames[number] for number in lines[:_MAX_FRAMES])
        if not frames or not frames[-1].user:
            return Place(Source(), has_line=False, in_optimizer=False)
        source = Source(frames)
        return Place(source, has_line=True, in_optimizer=from_optimizer(source))

    def _enter(self, code: CodeType) -> tuple[int, dict[int, int], CodeType]:
        file = code.co_filename
        if is_own_code(os.path.abspath(file)) or any(part in file for part in _MACHINERY):
            kind = _HIDDEN
        else:
            kind = _USER if is_user_code(file) else _LIBRARY
        known = self._codes[id(code)] = (kind, {}, code)
        return known

    def _look_at(self, frame: FrameType, user: bool) -> int:
        """The number of a frame's line."""
        code = frame.f_code
        self._frames.append(Frame(shortened(code.co_filename), frame.f_lineno, code.co_qualname, user))
        return len(self._frames) - 1
