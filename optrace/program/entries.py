"""Which entry of a file is meant, and what running it means.

What is looked for, in this order (``RANKS`` says it to the user):

1. ``file.py:name`` or ``package.module:name``: that callable, module or model;
2. ``Model`` with ``get_inputs()`` and, where present, ``get_init_inputs()``;
3. ``model`` with ``inputs``, ``example_inputs`` or ``get_inputs()``;
4. ``main()``, ``run()`` or ``step()``, defined in the file (``async`` or not) and callable without arguments;
5. otherwise the file is a script and runs with ``__name__ == "__main__"``.

Whether a file has an entry of rank 2 to 4 is read off its syntax tree, not found out by importing it: a script
that works at import has to run once, and under the recorder. Names count where they are bound at the top
level, also inside ``if`` and ``try``, but not under ``if __name__ == "__main__":`` and not through
``import *``. ``file.py:__main__`` runs a file as a script whatever it defines.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

from optrace.program.files import SourceFile, import_dotted, imports_from, split_target
from optrace.program.options import Options, ProgramError, check, refuse_model_options
from optrace.program.step import Recorder, arguments_of, describe_step, inputs_from, step_around

RANKS = (
    "file.py:name",
    "Model with get_inputs()",
    "model with inputs, example_inputs or get_inputs()",
    "main(), run() or step()",
    "the file as a script",
)

INPUTS = ("inputs", "example_inputs", "get_inputs")
FUNCTIONS = ("main", "run", "step")


@dataclass(frozen=True, slots=True)
class Program:
    """Something to run. ``describe`` says in one line what was chosen and how it is run.

    ``marks_steps``: the program runs once and marks its steps itself, with ``optrace.step``.
    """

    name: str
    describe: str
    steps: int
    warmup: int
    marks_steps: bool
    _set_up: Callable[[Recorder], Callable[[], object]]

    def step(self, recorder: Recorder) -> Callable[[], object]:
        """The step alone, set up to be run as often as one likes. Raises ``ProgramError`` for a program that runs
        once and marks its steps itself."""
        if self.marks_steps:
            raise ProgramError(
                f"{self.name} runs once, as a script: only a model or a function can be run again"
            )
        return _exits_quietly(self._set_up(recorder))

    def run(self, recorder: Recorder) -> None:
        """Set up, warm up, record. The program's own exceptions pass through."""
        step = _exits_quietly(self._set_up(recorder))
        if self.marks_steps:
            with recorder.recording(warmup=self.warmup, steps=self.steps):
                step()
            return
        for _ in range(self.warmup):
            step()
        with recorder.recording():
            for _ in range(self.steps):
                recorder.begin_run()
                step()


@contextmanager
def find_program(target: str, options: Options | None = None) -> Iterator[Program]:
    """The program that ``target`` (``file.py``, ``file.py:name``, ``package.module:name``) means.

    Its file is imported here, or run as a script by ``Program.run``. While the context is active the file's
    folder stands first on ``sys.path``, ``sys.argv`` is the program's, and the file is a module of
    ``sys.modules``; all of it is restored after.

    Raises ``ProgramError``; whatever the file itself raises passes through.
    """
    options = options or Options()
    check(options)
    place, name = split_target(target)
    if isinstance(place, str):
        with imports_from(Path.cwd(), [place, *options.args]):
            yield _named(import_dotted(place), place, name, options)
        return
    file = SourceFile.read(place)
    with imports_from(file.path.parent, [str(place), *options.args], file.packages):
        if name and name != "__main__":
            yield _named(file.load(), file.path.name, name, options, marks_steps=file.outline.marks_steps)
        elif name or (rank := _rank(file)) == "script":
            yield _script(file, options)
        elif rank == "function":
            yield _function(file, options)
        else:
            yield _model(file.load(), file.path.name, rank, options)


Rank = Literal["Model", "model", "function", "script"]


def _rank(file: SourceFile) -> Rank:
    """The best rank that the file has a complete entry of."""
    bound, where = file.outline.bound, file.path.name
    if "Model" in bound and "get_inputs" in bound:
        return "Model"
    if "model" in bound and any(name in bound for name in INPUTS):
        return "model"
    if any(name in file.outline.plain_functions for name in FUNCTIONS):
        return "function"
    if bound.get("Model") == "class":
        raise ProgramError(
            f"{where} defines Model and no get_inputs(): add get_inputs() that returns the arguments of its "
            f"forward, or run the file as a script with {where}:__main__"
        )
    return "script"


def _script(file: SourceFile, options: Options) -> Program:
    refuse_model_options(options, f"{file.path.name} runs as a script")
    return Program(
        name=file.path.name,
        describe=f"{file.path.name} as a script",
        steps=options.steps,
        warmup=options.warmup or 0,
        marks_steps=True,
        _set_up=lambda _: lambda: file.load("__main__"),
    )


def _function(file: SourceFile, options: Options) -> Program:
    names = [name for name in FUNCTIONS if name in file.outline.plain_functions]
    if len(names) > 1:
        raise _ambiguous(file.path.name, [f"{name}()" for name in names], f"{file.path.name}:{names[0]}")
    return _named(file.load(), file.path.name, names[0], options, marks_steps=file.outline.marks_steps)


def _named(
    module: ModuleType, where: str, name: str, options: Options, *, marks_steps: bool = False
) -> Program:
    """The entry called ``name``: a model with the module's inputs, or a callable."""
    try:
        entry = attrgetter(name)(module)
    except AttributeError:
        raise ProgramError(f"{where} has no {name!r} (it has {_names_of(module)})") from None
    if _is_model(entry) or (callable(entry) and (name == "model" or not _callable_plainly(entry))):
        return _with_inputs(module, where, name, entry, options)
    if not callable(entry):
        raise ProgramError(
            f"{where}:{name} is of type {type(entry).__name__}: neither a callable nor a model"
        )
    refuse_model_options(options, f"{name}() of {where} is called as it is")
    return Program(
        name=f"{where}:{name}",
        describe=f"{name}() of {where}",
        steps=options.steps,
        warmup=options.warmup or 0,
        marks_steps=marks_steps,
        _set_up=lambda _: _to_its_end(entry),
    )


def _model(module: ModuleType, where: str, rank: Literal["Model", "model"], options: Options) -> Program:
    return _with_inputs(module, where, rank, getattr(module, rank), options)


def _with_inputs(module: ModuleType, where: str, name: str, entry: Any, options: Options) -> Program:
    """A step made of a model and the inputs that its module offers."""
    if not callable(entry):
        raise ProgramError(
            f"{name} of {where} is of type {type(entry).__name__}: neither a model nor a function"
        )
    source = _inputs_of(module, where, name)
    build = isinstance(entry, type) or (not _is_model(entry) and _callable_plainly(entry))
    init = "get_init_inputs" if isinstance(entry, type) and hasattr(module, "get_init_inputs") else ""

    def set_up(recorder: Recorder) -> Callable[[], object]:
        model = entry
        if build:
            args, kwargs = arguments_of(module.get_init_inputs()) if init else ((), {})
            model = entry(*args, **kwargs)
        if not callable(model):
            raise ProgramError(f"{name}() of {where} made a {type(model).__name__}, which cannot be called")
        return step_around(model, inputs_from(module, source, options), options, recorder)

    made = f"{name}({f'*{init}()' if init else ''})" if build else name
    inputs = f"{source}()" if callable(getattr(module, source)) else source
    return Program(
        name=f"{where}:{name}",
        describe=f"{made} with {inputs} of {where}: {describe_step(options)}",
        steps=options.steps,
        warmup=int(options.train) if options.warmup is None else options.warmup,
        marks_steps=False,
        _set_up=set_up,
    )


def _inputs_of(module: ModuleType, where: str, name: str) -> str:
    """Which of the names for inputs the module has."""
    names = ("get_inputs",) if name == "Model" else INPUTS
    found = [source for source in names if hasattr(module, source)]
    if not found:
        raise ProgramError(
            f"{name} of {where} takes arguments and there are none: define {' or '.join(names)} there"
        )
    if len(found) > 1:
        raise _ambiguous(where, found, "keep one of them")
    return found[0]


def _ambiguous(where: str, names: Sequence[str], way_out: str) -> ProgramError:
    return ProgramError(f"{where} has {' and '.join(names)}: name the one to run ({way_out})")


def _is_model(entry: object) -> bool:
    return isinstance(entry, torch.nn.Module) or (
        isinstance(entry, type) and issubclass(entry, torch.nn.Module)
    )


def _callable_plainly(entry: Callable[..., object]) -> bool:
    """Whether it can be called without arguments; a builtin that does not say is taken for one with some."""
    try:
        inspect.signature(entry).bind()
    except (TypeError, ValueError):
        return False
    return True


def _to_its_end(entry: Callable[[], object]) -> Callable[[], object]:
    """The call that does the work: a coroutine is awaited, a generator taken to its last item."""

    def run() -> object:
        made = entry()
        if inspect.iscoroutine(made):
            return asyncio.run(made)
        return deque(made, maxlen=0) if inspect.isgenerator(made) else made

    return run


#: So many of a module's names stand in an error.
_NAMES_TOLD = 12


def _names_of(module: ModuleType) -> str:
    """What a target could have meant: the module's own callables before those that it imports."""
    names = [name for name, value in vars(module).items() if not name.startswith("_") and callable(value)]
    names.sort(key=lambda name: getattr(vars(module)[name], "__module__", None) != module.__name__)
    more = f" and {len(names) - _NAMES_TOLD} more" if len(names) > _NAMES_TOLD else ""
    return ", ".join(names[:_NAMES_TOLD]) + more or "no callable"


def _exits_quietly(step: Callable[[], object]) -> Callable[[], object]:
    """A program that ends with ``sys.exit()`` has ended well."""

    def run() -> object:
        try:
            return step()
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
            return None

    return run
