"""The table of kinds. A kind is one function from the run to its hits, under a name and a title."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from optrace.diagnosis.findings.finding import Hit
from optrace.diagnosis.findings.scene import Scene

Rule = Callable[[Scene], Iterable[Hit]]


@dataclass(frozen=True, slots=True)
class Kind:
    """``title`` says in few words what is found; ``rule`` finds it."""

    name: str
    title: str
    rule: Rule


KINDS: dict[str, Kind] = {}


def kind(name: str, title: str) -> Callable[[Rule], Rule]:
    """Find these with the decorated function. Registering a name twice raises ``ValueError``."""

    def register(rule: Rule) -> Rule:
        if name in KINDS:
            raise ValueError(f"{name} has a rule already: {KINDS[name].rule.__qualname__}")
        KINDS[name] = Kind(name, title, rule)
        return rule

    return register
