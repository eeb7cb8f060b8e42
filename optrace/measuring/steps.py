"""Steps of a program, run as often as a measurement needs them: a callable again and again, or a program that marks
its own steps, run whole as often as it takes.

What a measurement does is a context around one step, so that both kinds are measured alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter  # not by attribute: a session replaces it, to hear the program's own
from typing import Any, Protocol, TypeVar

from optrace.program import Program
from optrace.tracing import Session

#: Entered around one step.
Around = Callable[[], AbstractContextManager[object]]

T = TypeVar("T")


class MeasureError(RuntimeError):
    """The program cannot be measured, or not here: what failed and the way out."""


class Steps(Protocol):
    """What a measurement needs of a program."""

    def run(
        self,
        around: Around,
        wanted: int,
        seconds: float = float("inf"),
        look: Callable[[], object] | None = None,
    ) -> int:
        """Run ``wanted`` steps, each inside ``around()``; fewer, but at least one, once ``seconds`` are over. With a
        ``look`` ahead of each, an untimed step stands between the two where steps can be repeated: a look at the host
        leaves caches cold. Returns how many."""

    def row(self, wanted: int, start: Callable[[], None], end: Callable[[], None]) -> int:
        """Run up to ``wanted`` steps one after the other between ``start()`` and ``end()``. Returns how many."""


class Repeated:
    """A step that is called as often as one likes."""

    def __init__(self, step: Callable[[], object]) -> None:
        self.step = step

    def run(
        self,
        around: Around,
        wanted: int,
        seconds: float = float("inf"),
        look: Callable[[], object] | None = None,
    ) -> int:
        """As ``Steps.run``."""
        end = perf_counter() + seconds
        done = 0
        while done < wanted and (not done or perf_counter() < end):
            if look is not None:
                look()
                self.step()
            with around():
                self.step()
            done += 1
        return done

    def row(self, wanted: int, start: Callable[[], None], end: Callable[[], None]) -> int:
        """As ``Steps.row``."""
        start()
        for _ in range(wanted):
            self.step()
        end()
        return wanted


class Marked:
    """A program that marks its steps with ``optrace.step``: each turn runs all of it, and the first ``skip`` steps of
    a turn are left out.

    The first turn is a warm-up; it says how many steps there are. Raises ``MeasureError`` where there are none left.
    """

    def __init__(self, session: Session, program: Callable[[], object], name: str, skip: int | None) -> None:
        self._session = session
        self._program = program
        seen = self._turn(lambda _number: nullcontext())
        if not seen:
            raise MeasureError(
                f"{name} ran once and marked no step, so there is nothing to repeat: mark it with optrace.step, or "
                "name a function or a model (see optrace measure --help)"
            )
        self.skip = min(1, seen - 1) if skip is None else skip
        if self.skip >= seen:
            raise MeasureError(f"--warmup {self.skip}: {name} marks {seen} steps, so none is left to measure")
        self._each = seen - self.skip

    def run(
        self,
        around: Around,
        wanted: int,
        seconds: float = float("inf"),
        look: Callable[[], object] | None = None,
    ) -> int:
        """As ``Steps.run``."""
        end = perf_counter() + seconds
        done = 0

        def inside(number: int) -> AbstractContextManager[object]:
            nonlocal done
            if number < self.skip or done >= wanted:
                return nullcontext()
            done += 1
            if look is not None:
                look()
            return around()

        while done < wanted and (not done or perf_counter() < end):
            before = done
            self._turn(inside)
            if done == before:
                raise MeasureError("the program marked its steps the first time it ran, and none now")
        return done

    def row(self, wanted: int, start: Callable[[], None], end: Callable[[], None]) -> int:
        """As ``Steps.row``: what the program does between its steps is part of it."""
        count = min(wanted, self._each)

        def inside(number: int) -> AbstractContextManager[object]:
            if number == self.skip:
                start()
            return _then(end) if number == self.skip + count - 1 else nullcontext()

        self._turn(inside)
        return count

    def _turn(self, inside: Callable[[int], AbstractContextManager[object]]) -> int:
        """Run the program once, its k-th step inside ``inside(k)``; how many steps it marked."""
        seen = 0

        def around() -> AbstractContextManager[object]:
            nonlocal seen
            seen += 1
            return inside(seen - 1)

        with self._session.around_steps(around):
            self._program()
        return seen


@contextmanager
def _then(action: Callable[[], None]) -> Iterator[None]:
    yield
    action()


class _Unrecorded:
    """A session to a program that is run whole and recorded by nobody."""

    def __init__(self, session: Session) -> None:
        self.device = session.device
        self._session = session

    def place(self, value: T) -> T:
        return self._session.place(value)

    def recording(self, **_how: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def begin_run(self) -> None:
        pass


def steps_of(program: Program, session: Session, warmup: int | None = None) -> Steps:
    """The steps of ``program``, set up. ``warmup``: steps at the start of a program that marks its own to leave out
    (None: one, where it marks more). Raises ``MeasureError``, and whatever the program raises."""
    if not program.marks_steps:
        return Repeated(program.step(session))
    return Marked(session, lambda: program.run(_Unrecorded(session)), program.name, warmup)
