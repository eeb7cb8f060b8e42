"""Exit codes, and how each way of failing is told.

| code | |
|---|---|
| 0 | done |
| 1 | the program raised while it was traced; what was recorded before is written, marked partial. Of a check: the run is over its budget |
| 2 | bad input: nothing was recorded, nothing was written |
| 130 | interrupted; what was recorded before is written, marked partial |
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import optrace
from optrace.visible import visible

DONE = 0
PROGRAM_RAISED = 1
OVER_BUDGET = 1
BAD_INPUT = 2
INTERRUPTED = 130


class BadInput(Exception):
    """What was asked for cannot be done. The message is one line: what failed, the value, the way out."""


@contextmanager
def bad_input(*errors: type[Exception]) -> Iterator[None]:
    """Exceptions of ours that mean bad input, as ``BadInput``."""
    try:
        yield
    except errors as error:
        raise BadInput(str(error)) from error


def tell(message: str) -> None:
    """One line on stderr."""
    print(f"optrace: {visible(message)}", file=sys.stderr)


def tell_raised(error: BaseException) -> None:
    """The traceback of the user's program on stderr: where his own code stood, and nothing of ours."""
    summary = traceback.TracebackException.from_exception(error)
    if _is_our_fault(error, summary.stack):
        tell("this is a fault of optrace, not of the program; the whole traceback:")
    else:
        _strip(summary, error)
    print("".join(summary.format()), end="", file=sys.stderr)


def _is_our_fault(error: BaseException, stack: traceback.StackSummary) -> bool:
    """It arose in our code, and is no RuntimeError, which is how a device that is stood in for complains."""
    return bool(stack) and _is_ours(stack[-1].filename) and not isinstance(error, RuntimeError | SyntaxError)


def _strip(summary: traceback.TracebackException, error: BaseException) -> None:
    """Remove our frames, and those of libraries that we called: an eager run would have had neither."""
    summary.stack = traceback.StackSummary.from_list(_of_the_program(summary.stack, error))
    for chained, its_error in (
        (summary.__cause__, error.__cause__),
        (summary.__context__, error.__context__),
    ):
        if chained is not None and its_error is not None:
            _strip(chained, its_error)


def _of_the_program(stack: traceback.StackSummary, error: BaseException) -> list[traceback.FrameSummary]:
    from optrace.tracing.sources import is_user_code

    kept, below_ours = [], True
    for frame in stack:
        if _is_ours(frame.filename):
            below_ours = True
        elif not below_ours or is_user_code(frame.filename):
            below_ours = False
            kept.append(frame)
    if kept or isinstance(error, SyntaxError):
        return kept
    # A program that is part of an installed package has no frame that counts as the user's.
    return [frame for frame in stack if not _is_ours(frame.filename)]


_OURS = tuple(
    os.path.join(os.path.abspath(folder), "")
    for folder in (os.path.dirname(__file__), os.path.dirname(optrace.__file__))
)


def _is_ours(file: str) -> bool:
    return os.path.abspath(file).startswith(_OURS)
