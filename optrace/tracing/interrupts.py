"""Ctrl-C while a session is open.

Python hands a signal to its handler between any two instructions, also in Python that C++ has called: a property of a
fake tensor that autograd asks for while it notes what a result is made of, the end of an object that C++ lets go. An
exception raised there ends the process (``terminate called after throwing 'python_error'``) or is printed and lost. So
an interrupt is raised at once only in the program's own lines; in the lines of torch and of optrace it is noted, and
raised where an exception may pass: before the next call that is dispatched, in the next of the program's own lines, or
when the recording ends. A second interrupt is raised wherever it comes, and so is the first after a second in which
nothing of this happened.
"""

from __future__ import annotations

import _thread
import gc
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep  # as they are: a session listens for clocks that the program reads
from types import FrameType

#: Whether an interrupt waits to be raised.
noted = False

#: Of whose lines C++ may be the caller; a context that is half entered is never left.
_NOT_THE_PROGRAM = frozenset({"torch", "torchgen", "functorch", "optrace", "contextlib"})
#: What loses an exception that is raised below it: autograd's engine, the end of an object; collections of garbage tell
#: ``gc.callbacks`` in the same way.
_LOSES = frozenset({"_engine_run_backward", "__del__"})

_TURN_S = 0.01
_PATIENCE_S = 1.0


def raise_noted() -> None:
    """Raise the interrupt that was noted, if one was and this is the thread that gets them."""
    global noted
    if noted and threading.current_thread() is threading.main_thread():
        noted = False
        raise KeyboardInterrupt


@contextmanager
def noted_in_between() -> Iterator[None]:
    """Inside the context, interrupts are raised where they do no harm. Nothing is changed outside of the main thread,
    and where the program has a handler of its own."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    handler = _Handler()
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        handler.close()
        if signal.getsignal(signal.SIGINT) is handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        raise_noted()


class _Handler:
    """Python's handler of SIGINT while a session is open."""

    def __init__(self) -> None:
        self._open = True
        self._sending = threading.Lock()
        self._sent = False  # by ``_send_again``, not by the user
        self._since = 0.0

    def __call__(self, _signal: int, frame: FrameType | None) -> None:
        global noted
        sent, self._sent = self._sent, False
        if sent and not noted:
            return  # raised in the meantime
        if _in_the_program(frame) or (noted and (not sent or monotonic() - self._since > _PATIENCE_S)):
            noted = False
            raise KeyboardInterrupt
        if not noted:
            noted, self._since = True, monotonic()
            _thread.start_new_thread(self._send_again, ())

    def _send_again(self) -> None:
        """Look again and again where the program is, until the interrupt that was noted is raised."""
        while True:
            sleep(_TURN_S)
            with self._sending:
                if not (noted and self._open):
                    return
                self._sent = True
                _send()

    def close(self) -> None:
        """Nothing is sent any more. What was sent is handled before this returns."""
        with self._sending:
            self._open = False


def _send() -> None:
    """SIGINT, so that it also ends the main thread's waits."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:  # Windows
        _thread.interrupt_main()


def _in_the_program(frame: FrameType | None) -> bool:
    """Whether a line is one of the program, or of what it called by Python alone."""
    while frame is not None and _package(frame) in sys.stdlib_module_names - _NOT_THE_PROGRAM:
        frame = frame.f_back
    if frame is None or _package(frame) in _NOT_THE_PROGRAM:
        return False
    told_of_garbage = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None and frame.f_code.co_name not in _LOSES and frame.f_code not in told_of_garbage:
        frame = frame.f_back
    return frame is None


def _package(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__")
    return name.partition(".")[0] if isinstance(name, str) else ""
