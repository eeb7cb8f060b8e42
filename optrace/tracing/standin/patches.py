"""One mechanism for every name of torch that the stand-in replaces while it is active.

Each replaced name is a row (`Patch`) with the reason it has to be replaced; rows are entered in order and
restored in reverse order, also after an exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Patch:
    """`target.attribute` becomes `replacement` while the stand-in is active."""

    target: Any  # a module or a class
    attribute: str
    replacement: object
    why: str


@contextmanager
def applied(patches: Iterable[Patch]) -> Iterator[None]:
    """Enter the rows of `patches` in order; restore each target's own attribute on the way out."""
    undo: list[tuple[Any, str, object]] = []
    try:
        for patch in patches:
            # The target's own dictionary, not getattr: an inherited attribute is restored by deleting ours,
            # and descriptors (properties, static methods) come back as they were.
            undo.append((patch.target, patch.attribute, vars(patch.target).get(patch.attribute, _ABSENT)))
            setattr(patch.target, patch.attribute, patch.replacement)
        yield
    finally:
        for target, attribute, previous in reversed(undo):
            if previous is _ABSENT:
                delattr(target, attribute)
            else:
                setattr(target, attribute, previous)
