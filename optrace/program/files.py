"""A target's file: found, read without running it, and run as a module of the interpreter."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Literal

from optrace.program.options import ProgramError


def split_target(target: str) -> tuple[Path | str, str]:
    """A file or a module's dotted name, and the name of the entry, empty where none is given."""
    place, colon, name = target.rpartition(":")
    if not colon or os.path.isfile(target):  # of a name too long, a Path's methods raise
        place, name = target, ""
    elif not name:
        raise ProgramError(f"{target}: nothing after the colon (file.py:name)")
    path = Path(place)
    if os.path.isfile(place):
        return path, name
    dotted = path.suffix != ".py" and all(part.isidentifier() for part in place.split("."))
    if dotted and name:
        return place, name
    if os.path.isdir(place):
        raise ProgramError(f"{place} is a folder: name the file to trace, {path / 'model.py'} say")
    package = place.partition(".")[0]
    importable = dotted and (os.path.isdir(package) or importlib.util.find_spec(package))
    hint = f" (for a module of a package say what to run: {place}:main)" if importable else ""
    raise ProgramError(f"no such file: {place}{hint}")


def import_dotted(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ProgramError(f"no module named {error.name!r} (looked for {name})") from None
        raise


Bound = Literal["def", "class", "assigned", "imported"]


@dataclass(slots=True)
class Outline:
    """What a file's syntax tree says of it: its top-level names and how they are bound."""

    bound: dict[str, Bound] = field(default_factory=dict)
    #: Functions that can be called without arguments.
    plain_functions: set[str] = field(default_factory=set)
    marks_steps: bool = False

    @classmethod
    def of(cls, tree: ast.Module) -> Outline:
        outline = cls(marks_steps=any(_is_mark(node) for node in ast.walk(tree)))
        outline._read(tree.body)
        return outline

    def _read(self, body: Sequence[ast.stmt]) -> None:
        for node in body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self.bound[node.name] = "def"
                    if _needs_no_arguments(node.args):
                        self.plain_functions.add(node.name)
                case ast.ClassDef():
                    self.bound[node.name] = "class"
                case ast.Import() | ast.ImportFrom():
                    for alias in node.names:
                        self.bound[alias.asname or alias.name.partition(".")[0]] = "imported"
                case ast.Assign():
                    self._assign(*node.targets)
                case ast.AnnAssign(value=ast.expr()):
                    self._assign(node.target)
                case ast.If() if _guards_main(node.test):
                    self._read(node.orelse)
                case ast.If() | ast.For() | ast.While():
                    self._read([*node.body, *node.orelse])
                case ast.With():
                    self._read(node.body)
                case ast.Try():
                    handlers = [statement for handler in node.handlers for statement in handler.body]
                    self._read([*node.body, *handlers, *node.orelse, *node.finalbody])
                case _:
                    pass

    def _assign(self, *targets: ast.expr) -> None:
        for target in targets:
            if isinstance(target, ast.Name):
                self.bound[target.id] = "assigned"
            elif isinstance(target, ast.Tuple | ast.List):
                self._assign(*target.elts)


def _guards_main(test: ast.expr) -> bool:
    """``__name__ == "__main__"``, either way round."""
    return "__name__" in (text := ast.unparse(test)) and "__main__" in text


def _needs_no_arguments(arguments: ast.arguments) -> bool:
    positional = len(arguments.posonlyargs) + len(arguments.args)
    return positional == len(arguments.defaults) and None not in arguments.kw_defaults


def _is_mark(node: ast.AST) -> bool:
    """``optrace.step`` or ``from optrace import step``."""
    match node:
        case ast.Attribute(value=ast.Name(id="optrace"), attr="step"):
            return True
        case ast.ImportFrom(module="optrace", names=names):
            return any(alias.name == "step" for alias in names)
    return False


@dataclass(frozen=True, slots=True)
class SourceFile:
    path: Path
    tree: ast.Module
    outline: Outline

    @classmethod
    def read(cls, path: Path) -> SourceFile:
        """Raises ``SyntaxError`` as an import would."""
        path = path.resolve()
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise ProgramError(
                f"{str(path)!a}: no record can hold this name, it is no UTF-8: rename it"
            ) from None
        try:
            tree = ast.parse(path.read_bytes(), filename=str(path))
        except OSError as error:
            raise ProgramError(f"cannot read {path}: {error.strerror}") from None
        except SyntaxError as error:
            if error.lineno:
                raise
            raise ProgramError(f"{path} is not Python: {error.msg}") from None
        except ValueError as error:
            raise ProgramError(f"{path} is not Python: {error}") from None
        return cls(path, tree, Outline.of(tree))

    @property
    def packages(self) -> list[Path]:
        """The folders of the packages that the file is in, the innermost first."""
        return list(takewhile(lambda folder: (folder / "__init__.py").is_file(), self.path.parents))

    def load(self, name: str = "") -> ModuleType:
        """Run the file as module ``name``, by default that of an import. It stays in ``sys.modules``, where
        dataclasses, pickle and siblings that import it back look for it. Relative imports mean its package."""
        module = ModuleType(name or self._module_name())
        module.__file__ = str(self.path)
        module.__package__ = ".".join(folder.name for folder in reversed(self.packages)) or None
        sys.modules[module.__name__] = module
        exec(compile(self.tree, str(self.path), "exec"), module.__dict__)
        return module

    def _module_name(self) -> str:
        """The file's own name, unless that would hide a module that others need."""
        stem = self.path.stem
        taken = stem in sys.modules or stem in sys.stdlib_module_names or not stem.isidentifier()
        return f"optrace_program_{stem}" if taken else stem


@contextmanager
def imports_from(folder: Path, argv: list[str], packages: Sequence[Path] = ()) -> Iterator[None]:
    """Import from ``folder`` as Python does for a script in it, and put the interpreter back afterwards: what it
    imports from, the current folder, the standard streams. ``packages`` are those that the script is in, the outermost
    last: that one can be imported as well.

    Modules found in the folder are forgotten, so that the next program's ``utils`` is its own.
    """
    folders = [folder, *(package.parent for package in packages[-1:])]
    path, old_argv, modules = list(sys.path), sys.argv, dict(sys.modules)
    current, streams = os.getcwd(), (sys.stdin, sys.stdout, sys.stderr)
    sys.path[:] = [str(folder), *path, *map(str, folders[1:])]
    sys.argv = argv
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path
        sys.argv = old_argv
        sys.stdin, sys.stdout, sys.stderr = streams
        os.chdir(current)
        for name in [name for name in sys.modules if modules.get(name) is not sys.modules[name]]:
            if name in modules:
                sys.modules[name] = modules[name]
            elif any(_found_in(place, name.partition(".")[0]) for place in folders):
                del sys.modules[name]


def _found_in(folder: Path, package: str) -> bool:
    """Whether a top-level package or module lies directly in ``folder`` (or was forgotten just before)."""
    module = sys.modules.get(package)
    places = getattr(module, "__path__", None) or [getattr(module, "__file__", None)]
    return module is None or any(place and Path(place).parent == folder for place in places)
