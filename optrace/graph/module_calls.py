"""The table of module calls. A long script makes nearly as many as it makes op calls: a row is two numbers."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from optrace.graph.nouns import ModuleCall

#: So many calls of a module may have been passed over before one is looked up by hash.
_NEAR = 64


class ModuleCalls:
    """Distinct module calls numbered by first appearance."""

    __slots__ = ("_by_call", "_call", "_far", "_module", "_modules", "_numbers")

    def __init__(self) -> None:
        self._modules: list[tuple[str, str]] = []
        self._numbers: dict[tuple[str, str], int] = {}
        # A row a module call: its module and its number there.
        self._module = array("I")
        self._call = array("q")
        # Of each module, by the number of a call: 1 + its row, 0 where there is none. Calls are numbered from 1, one by one;
        # of those that are not, the rows by module and number.
        self._by_call: list[array[int]] = []
        self._far: dict[tuple[int, int], int] = {}

    def add(self, value: ModuleCall) -> int:
        """The row of a module call, entered once."""
        return self.enter(value.path, value.cls, value.call)

    def enter(self, path: str, cls: str, call: int) -> int:
        """The row of the ``call``-th call of a module, entered once."""
        module = self._module_number(path, cls)
        by_call = self._by_call[module]
        near = 0 <= call < len(by_call) + _NEAR
        if near and call < len(by_call) and by_call[call]:
            return by_call[call] - 1
        # One that was far when it was entered is in reach once others have come.
        if (module, call) in self._far:
            return self._far[module, call]
        row = min(len(self._module), len(self._call))
        # First the row: an interrupt leaves one that nobody names, no name without a row.
        del self._module[row:], self._call[row:]
        self._module.append(module)
        self._call.append(call)
        if near:
            if call >= len(by_call):
                by_call.frombytes(bytes(by_call.itemsize * (call + 1 - len(by_call))))
            by_call[call] = row + 1
        else:
            self._far[module, call] = row
        return row

    def _module_number(self, path: str, cls: str) -> int:
        number = self._numbers.get((path, cls))
        if number is None:
            number = len(self._modules)
            self._modules.append((path, cls))
            self._by_call += [array("I") for _ in range(number + 1 - len(self._by_call))]
            self._numbers[path, cls] = number
        return number

    @property
    def rows(self) -> Iterator[ModuleCall]:
        """All, in order."""
        return (self[row] for row in range(len(self)))

    def __len__(self) -> int:
        return len(self._call)

    def __getitem__(self, row: int) -> ModuleCall:
        path, cls = self._modules[self._module[row]]
        return ModuleCall(path, cls, self._call[row])
