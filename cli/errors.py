"""Exit codes, and how each way of failing is told.

| code | |
|---|---|
| 0 | done |
| 1 | the program raised while it was traced; what was recorded before is written, marked partial |
| 2 | bad input: nothing was recorded, nothing was written |
| 130 | interrupted; what was recorded before is written, marked partial |
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator

DONE = 0
PROGRAM_RAISED = 1
BAD_INPUT = 2
INTERRUPTED = 130


class BadInput(Exception):
    """What was asked for cannot be done. The message is one line: what failed, the value, the way out."""


@contextlib.contextmanager
def bad_input(*errors: type[Exception]) -> Iterator[None]:
    """Exceptions of ours that mean bad input, as ``BadInput``."""
    try:
        yield
    except errors as error:
        raise BadInput(str(error)) from error


def tell(message: str) -> None:
    """One line on stderr."""
    print(f"optrace: {message}", file=sys.stderr)


def tell_raised(error: BaseException) -> None:
    """The traceback of the user's program on stderr, with our frames and the import machinery's removed."""
    summary = traceback.TracebackException.from_exception(error)
    if _is_our_fault(error, summary.stack):
        tell("this is a fault of optrace, not of the program; the whole traceback:")
    else:
        _strip(summary, set())
    print("".join(summary.format()), end="", file=sys.stderr)


def _is_our_fault(error: BaseException, stack: traceback.StackSummary) -> bool:
    """It arose in our code, and is no RuntimeError, which is how a device that is stood in for complains."""
    return bool(stack) and _is_ours(stack[-1].filename) and not isinstance(error, RuntimeError | SyntaxError)


def _strip(summary: traceback.TracebackException | None, seen: set[int]) -> None:
    if summary is None or id(summary) in seen:
        return
    seen.add(id(summary))
    summary.stack = traceback.StackSummary.from_list(
        [frame for frame in summary.stack if not _is_ours(frame.filename)]
    )
    _strip(summary.__cause__, seen)
    _strip(summary.__context__, seen)


_OURS = tuple(
    os.path.join(os.path.abspath(folder), "")
    for folder in (os.path.dirname(__file__), os.path.dirname(sys.modules["optrace"].__file__ or "."))
)


def _is_ours(file: str) -> bool:
    """A frame of optrace, of Python's import system, or of the context managers between them."""
    if file.startswith("<frozen "):
        return True
    return os.path.abspath(file).startswith(_OURS) or file == contextlib.__file__
