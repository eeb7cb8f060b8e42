"""Recorded graphs as commands take them: files, a title for each, and prices for all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import BadInput, bad_input

if TYPE_CHECKING:
    from optrace.rendering.diff import Titled


def read_titled(files: Sequence[Path], titles: Sequence[str], gpu: str | None) -> list[Titled]:
    """Each file with its title: the one given, else its name."""
    from optrace.graph import GraphFormatError
    from optrace.rendering import read_report
    from optrace.rendering.diff import Titled

    if titles and len(titles) != len(files):
        raise BadInput(
            f"--title was given {len(titles)} times for {len(files)} files: give one a file, or none"
        )
    with bad_input(GraphFormatError, ValueError):
        return [
            Titled(title, read_report(file, gpu=gpu))
            for file, title in zip(files, titles or _names(files), strict=True)
        ]


def _names(files: Sequence[Path]) -> list[str]:
    """File names without suffix; whole paths where those are not distinct."""
    stems = [file.stem for file in files]
    return stems if len(set(stems)) == len(stems) else [str(file) for file in files]
