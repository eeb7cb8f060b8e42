"""The outcome of a check as workflow commands of GitHub Actions, shown at the line that adds most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from optrace.diagnosis.gate import Outcome
from optrace.rendering.budget import details


def workflow_commands(program: str, outcomes: Iterable[Outcome]) -> Iterator[str]:
    """A line a limit that the run is over: an error, or for times a warning."""
    for outcome in outcomes:
        if outcome.over:
            level = "error" if outcome.fails else "warning"
            yield _command(level, f"optrace: {outcome.limit.name} of {program}", details(outcome), outcome)


def _command(level: str, title: str, lines: Sequence[str], outcome: Outcome) -> str:
    properties = {"title": title}
    if outcome.source is not None:
        properties = {"file": outcome.source.file, "line": str(outcome.source.line), **properties}
    shown = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{level} {shown}::{_data(chr(10).join(lines))}"


def _data(text: str) -> str:
    """As the runner wants it: a command is one line (actions/toolkit, command.ts)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
