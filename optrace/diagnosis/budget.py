"""Limits on a run: what a budget file may say, and which of them a run is over.

    launches = 120                     # of each program that is checked
    hbm_bytes = "baseline + 5 %"       # against what --update stored
    peak_bytes = "2 GiB"
    findings = ["sync"]                # kinds that must not be found

    [modules."GPT.blocks.*"]           # each module that fits, with what it holds
    launches = 24

    [programs."train.py"]              # limits of one program go before those of all
    launches = "baseline"

Counts are the same on every machine and gate; times come from a profile and only warn.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from optrace.diagnosis.figures import COUNTS, TIMES
from optrace.diagnosis.findings import KINDS

#: Where the baseline lies unless the budget says otherwise: beside it.
BASELINE = "optrace-baseline.json"

#: Units that a limit may be written in, by figure; a bare number is bytes, FLOPs, microseconds or a count.
_BYTES = {
    "B": 1,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_FLOPS = {"FLOP": 1, "kFLOP": 1e3, "MFLOP": 1e6, "GFLOP": 1e9, "TFLOP": 1e12, "PFLOP": 1e15}
_TIMES = {"us": 1, "ms": 1e3, "s": 1e6}
_UNITS: Mapping[str, Mapping[str, float]] = {
    "hbm_bytes": _BYTES,
    "peak_bytes": _BYTES,
    "flops": _FLOPS,
    **dict.fromkeys(TIMES, _TIMES),
}
_FIGURES = (*COUNTS, *TIMES)
_LIMIT_KEYS = (*_FIGURES, "findings")
_KEYS = ("baseline", "tolerance", *_LIMIT_KEYS, "modules", "programs")
_PROGRAM_KEYS = (*_LIMIT_KEYS, "modules")

_BASELINE_TEXT = re.compile(r"baseline(?:\s*\+\s*(\d+(?:\.\d+)?)\s*%)?")
_QUANTITY_TEXT = re.compile(r"(\d+(?:[\d_]*\d)?(?:\.\d+)?)\s*([A-Za-z]+)")


class BudgetError(ValueError):
    """The budget says something that cannot be checked: the key, the value, the choices."""


@dataclass(frozen=True, slots=True)
class Limit:
    """At most ``value`` of a figure; or, with ``over_baseline``, at most the baseline and this share over it.

    ``figure`` is a name of ``figures.COUNTS`` or ``TIMES``, or ``findings.<kind>``. ``module`` is a glob of module
    paths, empty for the whole run.
    """

    figure: str
    module: str = ""
    value: float = 0.0
    over_baseline: float | None = None

    @property
    def gates(self) -> bool:
        """Being over it fails the check; times only warn."""
        return self.figure not in TIMES

    @property
    def name(self) -> str:
        """``launches``, or ``launches of GPT.blocks.*``."""
        return f"{self.figure} of {self.module}" if self.module else self.figure


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget file. ``limits`` are for every program, ``programs`` for those that fit a glob."""

    path: Path
    baseline: Path
    limits: tuple[Limit, ...] = ()
    programs: Mapping[str, tuple[Limit, ...]] = field(default_factory=dict)

    def limits_for(self, *names: str) -> tuple[Limit, ...]:
        """The limits of a program that goes by any of ``names``; its own replace those of all programs.

        Raises ``BudgetError`` where there are none.
        """
        chosen = {(limit.module, limit.figure): limit for limit in self.limits}
        for pattern, limits in self.programs.items():
            if any(fnmatchcase(name, pattern) for name in names):
                chosen.update({(limit.module, limit.figure): limit for limit in limits})
        if not chosen:
            known = ", ".join(self.programs) or "no program"
            raise BudgetError(f"{self.path} sets no limit for {names[0]} (it has limits for {known})")
        return tuple(chosen.values())


def read_budget(path: Path) -> Budget:
    """A budget from ``optrace.toml``, or from ``[tool.optrace]`` of ``pyproject.toml``. Raises ``BudgetError``."""
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BudgetError(f"cannot read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BudgetError(f"cannot read {path}: {error}") from None
    if path.name == "pyproject.toml":
        tool = document.get("tool", {})
        if "optrace" not in tool:
            raise BudgetError(f"{path} has no [tool.optrace]: put the limits there, or into an optrace.toml")
        document = tool["optrace"]
    return _Reader(path).budget(document)


def limits_of(table: Mapping[str, Any], name: str) -> tuple[Limit, ...]:
    """The limits of a table as it would stand in a budget file. ``name`` says in errors where it comes from. Raises
    ``BudgetError``."""
    return _Reader(Path(name)).budget(table).limits


class _Reader:
    """Reads a budget; every error names the file, the key, the value and the choices."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tolerance = 0.0

    def budget(self, document: Mapping[str, Any]) -> Budget:
        self._known(document, _KEYS, "")
        tolerance = document.get("tolerance", 0.0)
        if (
            isinstance(tolerance, bool)
            or not isinstance(tolerance, int | float)
            or not 0 <= tolerance < math.inf
        ):
            raise self._error("tolerance", tolerance, "a share over the baseline that passes, such as 0.02")
        self._tolerance = float(tolerance)
        baseline = document.get("baseline", BASELINE)
        if not isinstance(baseline, str) or not baseline:
            raise self._error("baseline", baseline, f'the path of a file, such as "{BASELINE}"')
        programs = {}
        for name, table in self._tables(document, "programs", ""):
            where = f'programs."{name}".'
            self._known(table, _PROGRAM_KEYS, where)
            programs[name] = tuple(self._limits(table, where))
        return Budget(self._path, self._path.parent / baseline, tuple(self._limits(document, "")), programs)

    def _limits(self, table: Mapping[str, Any], where: str) -> Iterator[Limit]:
        yield from self._own_limits(table, where, "")
        for pattern, limits in self._tables(table, "modules", where):
            inside = f'{where}modules."{pattern}".'
            self._known(limits, _LIMIT_KEYS, inside)
            yield from self._own_limits(limits, inside, pattern)

    def _own_limits(self, table: Mapping[str, Any], where: str, module: str) -> Iterator[Limit]:
        for figure in _FIGURES:
            if figure in table:
                yield self._limit(f"{where}{figure}", figure, module, table[figure])
        if "findings" not in table:
            return
        found = table["findings"]
        if isinstance(found, list):
            found = dict.fromkeys(map(str, found), 0)
        if not isinstance(found, dict):
            raise self._error(
                f"{where}findings", found, f"a list of kinds that must not be found: {_kinds()}"
            )
        for kind, value in found.items():
            if kind not in KINDS:
                raise BudgetError(f"{self._path}: {where}findings: unknown kind {kind!r} (one of {_kinds()})")
            yield self._limit(f"{where}findings.{kind}", f"findings.{kind}", module, value)

    def _limit(self, key: str, figure: str, module: str, value: object) -> Limit:
        if isinstance(value, str):
            words = value.strip()
            against = _BASELINE_TEXT.fullmatch(words)
            if against:
                share = self._tolerance if against[1] is None else float(against[1]) / 100
                return Limit(figure, module, over_baseline=share)
            quantity = _QUANTITY_TEXT.fullmatch(words)
            unit = _UNITS.get(figure, {}).get(quantity[2]) if quantity else None
            if quantity and unit:
                return Limit(figure, module, value=float(quantity[1].replace("_", "")) * unit)
        elif isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
            return Limit(figure, module, value=float(value))
        units = _UNITS.get(figure)
        quantity_text = f"a number, a number with a unit ({', '.join(units)})" if units else "a number"
        raise self._error(key, value, f'{quantity_text}, "baseline" or "baseline + 5 %"')

    def _tables(
        self, table: Mapping[str, Any], key: str, where: str
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        tables = table.get(key, {})
        if not isinstance(tables, dict) or not all(isinstance(inner, dict) for inner in tables.values()):
            raise self._error(f"{where}{key}", tables, f'tables of limits, such as [{where}{key}."name"]')
        yield from tables.items()

    def _known(self, table: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
        for key in table:
            if key not in keys:
                raise BudgetError(f"{self._path}: unknown key {where}{key} (one of {', '.join(keys)})")

    def _error(self, key: str, value: object, expected: str) -> BudgetError:
        return BudgetError(f"{self._path}: {key} = {value!r}: expected {expected}")


def _kinds() -> str:
    return ", ".join(sorted(KINDS))


def fits(path: str, pattern: str) -> bool:
    """Whether a module path fits a glob: ``*`` is any name within one level, ``**`` any number of levels.

    >>> fits("GPT.blocks.3", "GPT.blocks.*"), fits("GPT.blocks.3.mlp", "GPT.blocks.*"), fits("GPT.a.b.mlp", "**.mlp")
    (True, False, True)
    """
    expression = re.escape(pattern).replace(r"\*\*", ".*").replace(r"\*", "[^.]*")
    return re.fullmatch(expression, path) is not None
