"""Numbers packed for the browser: typed columns behind one JSON header, compressed.

The file is ``u32 length of the header, the header as JSON, padding, columns``, little-endian, each column on a
multiple of eight bytes, gzipped. Columns with the same bytes are kept once: prices for another GPU share the
counts that they do not change.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
import numpy as np

#: Names of JavaScript's typed arrays, and numpy's for the same.
ColumnType = Literal["Uint8", "Uint16", "Uint32", "Int32", "Float32", "Float64"]
_NUMPY: dict[ColumnType, str] = {
    "Uint8": "<u1",
    "Uint16": "<u2",
    "Uint32": "<u4",
    "Int32": "<i4",
    "Float32": "<f4",
    "Float64": "<f8",
}
_ALIGNED = 8

#: Where a column lies: its type, its first byte behind the header, how many numbers.
Column = tuple[ColumnType, int, int]


class Packer:
    """Collects columns; ``pack`` puts the header that speaks of them in front."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._places: dict[tuple[ColumnType, bytes], Column] = {}
        self._size = 0

    def add(self, kind: ColumnType, numbers: Iterable[float]) -> Column:
        """The place of a column. Raises ``OverflowError`` for a number that its type cannot hold."""
        if isinstance(numbers, np.ndarray):
            column = numbers.astype(_NUMPY[kind])
            if column.dtype.kind != "f" and (column != numbers).any():
                raise OverflowError(f"a number does not fit {kind}")
            data = column.tobytes()
        else:
            data = np.asarray(list(numbers), dtype=_NUMPY[kind]).tobytes()
        place = self._places.get((kind, data))
        if place is None:
            place = (kind, self._size, len(data) // np.dtype(_NUMPY[kind]).itemsize)
            self._places[kind, data] = place
            padded = data + bytes(-len(data) % _ALIGNED)
            self._parts.append(padded)
            self._size += len(padded)
        return place

    def pack(self, header: Any) -> bytes:
        """The whole, compressed; the same input gives the same bytes."""
        text = msgspec.json.encode(header)
        text += b" " * (-(4 + len(text)) % _ALIGNED)
        return gzip.compress(
            b"".join((len(text).to_bytes(4, "little"), text, *self._parts)), compresslevel=6, mtime=0
        )


class Texts:
    """Distinct texts numbered by first appearance."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def add(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))

    @property
    def rows(self) -> list[str]:
        return list(self.numbers)
