"""A limit of time on each stage of a measurement.

Between two instructions of Python the stage is stopped by an alarm. One that hangs inside CUDA never gets there: a
thread waits a little longer and then ends the process.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class StageTimeoutError(RuntimeError):
    """A stage took longer than it may."""


@dataclass(frozen=True, slots=True)
class Limits:
    """``seconds`` for each stage; ``on_hang(stage)`` is called from another thread ``grace_s`` after that, where the
    stage could not be stopped, and should not return."""

    seconds: float
    on_hang: Callable[[str], None]
    grace_s: float = 10.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Raises ``StageTimeoutError`` inside once the time is over, where this is the main thread of a system with
        timers."""
        over = threading.Event()
        watchdog = threading.Thread(target=self._watch, args=(name, over), daemon=True)
        watchdog.start()
        try:
            with self._alarm(name):
                yield
        finally:
            over.set()

    def _watch(self, name: str, over: threading.Event) -> None:
        if not over.wait(self.seconds + self.grace_s):
            self.on_hang(name)

    @contextmanager
    def _alarm(self, name: str) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
            yield
            return

        def ring(*_: object) -> None:
            raise StageTimeoutError(f"{name} took longer than {self.seconds:g} s (--limit)")

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
