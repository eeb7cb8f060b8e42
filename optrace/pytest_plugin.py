"""The pytest plugin that comes with optrace: the fixture ``optrace_trace``.

pytest loads it in every run, so nothing of optrace or torch is imported before a test asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from optrace.api import Trace


class OpenTrace(Protocol):
    """What the fixture is: ``optrace.trace`` that enters by itself."""

    def __call__(self, **options: Any) -> Trace: ...


@pytest.fixture
def optrace_trace() -> Iterator[OpenTrace]:
    """Start a trace that ends with the test: ``t = optrace_trace(gpu="h100")``, later ``t.report()``.

    Options are those of ``optrace.trace``; the mode is ``fake`` unless one is given, so that tests say the same on
    every machine. One trace at a time.
    """
    from optrace.api import trace

    with ExitStack() as stack:

        def opened(**options: Any) -> Trace:
            return stack.enter_context(trace(**{"mode": "fake", **options}))

        yield opened
