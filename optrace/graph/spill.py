"""Columns of a long record in files: what was recorded long ago takes no memory.

``Spilled`` is an ``array`` whose earlier rows lie in a file without a name, mapped into memory and read when asked for.
Appending is the array's own, as quick as before; the file goes with the column, however the process ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from array import array
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Scratch:
    """A file without a name, closed with the last column that holds it. A descriptor and no file object: that would warn
    where it is collected in a cycle."""

    _descriptor = -1

    def __init__(self) -> None:
        with tempfile.TemporaryFile(prefix="optrace-") as file:
            self._descriptor = os.dup(file.fileno())

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def write(self, place: int, data: memoryview) -> None:
        os.lseek(self._descriptor, place, os.SEEK_SET)
        while data:
            data = data[os.write(self._descriptor, data) :]

    def mapped(self, typecode: str, rows: int) -> NDArray[Any]:
        """The first rows, which can be written to."""
        if not rows:
            return np.empty(0, typecode)
        return np.frombuffer(mmap.mmap(self._descriptor, rows * np.dtype(typecode).itemsize), typecode)


class Spilled(array):  # type: ignore[type-arg]  # of ints or of floats, as the array that it takes over
    """Rows of which the first are in a file. C code that looks at an array's memory sees the others only: ``values``
    gives all."""

    head: NDArray[Any]
    scratch: Scratch

    def __len__(self) -> int:
        return len(self.head) + array.__len__(self)

    def __iter__(self) -> Iterator[Any]:
        return chain(self.head.tolist(), array.__iter__(self))

    def __getitem__(self, place: Any) -> Any:
        cut = len(self.head)
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            if step != 1:
                raise ValueError(f"rows {place} of a column: only those side by side are read")
            rows = array(self.typecode, self.head[start:stop].tobytes())
            rows.extend(array.__getitem__(self, slice(max(start - cut, 0), max(stop - cut, 0))))
            return rows
        place = self._place(place)
        return self.head[place].item() if place < cut else array.__getitem__(self, place - cut)

    def __setitem__(self, place: Any, value: Any) -> None:
        place, cut = self._place(place), len(self.head)
        if place < cut:
            self.head[place] = value
        else:
            array.__setitem__(self, place - cut, value)

    def _place(self, place: int) -> int:
        found = place + len(self) if place < 0 else place
        if not 0 <= found < len(self):
            raise IndexError(f"row {place} of {len(self)}")
        return found

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy and a pickle are in memory."""
        return array, (self.typecode, values(self).tobytes())

    def __copy__(self) -> array[Any]:
        return array(self.typecode, values(self).tobytes())

    def __deepcopy__(self, memo: Any) -> array[Any]:
        return self.__copy__()


def values(column: array[Any]) -> NDArray[Any]:
    """A column's numbers, in its own type."""
    rows = np.asarray(memoryview(column))
    return np.concatenate((column.head, rows)) if isinstance(column, Spilled) else rows


def spilled(columns: Mapping[str, array[Any]]) -> dict[str, Spilled]:
    """The same columns with all of their rows in files; those given stay as they are.

    Raises ``OSError`` where there is no room for them (``TMPDIR`` says where they go).
    """
    return {name: _spilled(column) for name, column in columns.items()}


def _spilled(column: array[Any]) -> Spilled:
    rows = len(column)
    if isinstance(column, Spilled):
        scratch, known = column.scratch, column.head.nbytes
    else:
        scratch, known = Scratch(), 0
    # At the end of what is known, not of the file: an interrupt may have left rows there that nobody took over.
    scratch.write(known, memoryview(column).cast("B"))
    result = Spilled(column.typecode)
    result.scratch, result.head = scratch, scratch.mapped(column.typecode, rows)
    return result
