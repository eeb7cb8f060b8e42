"""``model.py`` to something to run: which entry of a file is meant, its inputs, and the training step around it.

What is looked for, in this order (``RANKS`` says it to the user):

1. ``file.py:name`` or ``package.module:name``: that callable, module or model;
2. ``Model`` with ``get_inputs()`` and, where present, ``get_init_inputs()``;
3. ``model`` with ``inputs``, ``example_inputs`` or ``get_inputs()``;
4. ``main()``, ``run()`` or ``step()``, defined in the file and callable without arguments;
5. otherwise the file is a script and runs with ``__name__ == "__main__"``.

Whether a file has an entry of rank 2 to 4 is read off its syntax tree, not found out by importing it: a script
that works at import has to run once, and under the recorder. Names count where they are bound at the top
level, also inside ``if`` and ``try``, but not under ``if __name__ == "__main__":`` and not through
``import *``. ``file.py:__main__`` runs a file as a script whatever it defines.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import reduce
from operator import add, attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch.utils import _pytree as pytree

T = TypeVar("T")

RANKS = (
    "file.py:name",
    "Model with get_inputs()",
    "model with inputs, example_inputs or get_inputs()",
    "main(), run() or step()",
    "the file as a script",
)

INPUTS = ("inputs", "example_inputs", "get_inputs")
FUNCTIONS = ("main", "run", "step")

OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "adadelta": torch.optim.Adadelta,
    "adafactor": torch.optim.Adafactor,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamax": torch.optim.Adamax,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}

DTYPES: Mapping[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
    "half": torch.float16,
    "float32": torch.float32,
    "fp32": torch.float32,
    "float64": torch.float64,
    "fp64": torch.float64,
}


class ProgramError(ValueError):
    """There is nothing to run as asked: what failed, the value, the way out."""


class Recorder(Protocol):
    """What a program needs of a tracing session."""

    @property
    def device(self) -> str: ...
    def place(self, value: T) -> T: ...
    def recording(self, *, warmup: int = ..., steps: int = ...) -> AbstractContextManager[None]: ...


@dataclass(frozen=True, slots=True)
class Options:
    """How to run a program. ``args`` are the script's own (``sys.argv[1:]``).

    ``steps`` are recorded after ``warmup`` (default: 1 with ``train``, so that optimizer state exists, else 0)
    that are not. ``dtype`` is that of weights and inputs, or with ``autocast`` the one to cast to.
    """

    train: bool = False
    optimizer: str = "adamw"
    steps: int = 1
    warmup: int | None = None
    dtype: str | None = None
    autocast: bool = False
    no_grad: bool = False
    batch: int | None = None
    args: tuple[str, ...] = ()


#: Options that mean something only where optrace builds the step from a model and its inputs.
MODEL_OPTIONS = ("train", "optimizer", "dtype", "autocast", "no_grad", "batch")


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
    _check(options)
    place, name = _split(target)
    if isinstance(place, str):
        with _imports_from(Path.cwd(), [place, *options.args]):
            yield _named(_import(place), place, name, options)
        return
    file = _File.read(place)
    with _imports_from(file.path.parent, [str(place), *options.args]):
        if name and name != "__main__":
            yield _named(file.load(), file.path.name, name, options, marks_steps=file.outline.marks_steps)
        elif name or (rank := _rank(file)) == "script":
            yield _script(file, options)
        elif rank == "function":
            yield _function(file, options)
        else:
            yield _model(file.load(), file.path.name, rank, options)


# -- which file, which name ---------------------------------------------------------------------------


def _split(target: str) -> tuple[Path | str, str]:
    """A file or a module's dotted name, and the name of the entry, empty where none is given."""
    place, colon, name = target.rpartition(":")
    if not colon or Path(target).is_file():
        place, name = target, ""
    elif not name:
        raise ProgramError(f"{target}: nothing after the colon (file.py:name)")
    path = Path(place)
    if path.is_file():
        return path, name
    dotted = path.suffix != ".py" and all(part.isidentifier() for part in place.split("."))
    if dotted and name:
        return place, name
    if path.is_dir():
        raise ProgramError(f"{place} is a folder: name the file to trace, {path / 'model.py'} say")
    package = place.partition(".")[0]
    importable = dotted and (Path(package).is_dir() or importlib.util.find_spec(package))
    hint = f" (for a module of a package say what to run: {place}:main)" if importable else ""
    raise ProgramError(f"no such file: {place}{hint}")


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ProgramError(f"no module named {error.name!r} (looked for {name})") from None
        raise


Bound = Literal["def", "class", "assigned", "imported"]


@dataclass(slots=True)
class _Outline:
    """What a file's syntax tree says of it: its top-level names and how they are bound."""

    bound: dict[str, Bound] = field(default_factory=dict)
    #: Functions that can be called without arguments.
    plain_functions: set[str] = field(default_factory=set)
    marks_steps: bool = False

    @classmethod
    def of(cls, tree: ast.Module) -> _Outline:
        outline = cls(marks_steps=any(_is_mark(node) for node in ast.walk(tree)))
        outline._read(tree.body)
        return outline

    def _read(self, body: Sequence[ast.stmt]) -> None:
        for node in body:
            match node:
                case ast.FunctionDef():
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
class _File:
    path: Path
    tree: ast.Module
    outline: _Outline

    @classmethod
    def read(cls, path: Path) -> _File:
        """Raises ``SyntaxError`` as an import would."""
        path = path.resolve()
        try:
            tree = ast.parse(path.read_bytes(), filename=str(path))
        except OSError as error:
            raise ProgramError(f"cannot read {path}: {error.strerror}") from None
        except ValueError as error:
            raise ProgramError(f"{path} is not Python: {error}") from None
        return cls(path, tree, _Outline.of(tree))

    def load(self, name: str = "") -> ModuleType:
        """Run the file as module ``name``, by default that of an import. It stays in ``sys.modules``, where
        dataclasses, pickle and siblings that import it back look for it."""
        module = ModuleType(name or self._module_name())
        module.__file__ = str(self.path)
        sys.modules[module.__name__] = module
        exec(compile(self.tree, str(self.path), "exec"), module.__dict__)
        return module

    def _module_name(self) -> str:
        """The file's own name, unless that would hide a module that others need."""
        stem = self.path.stem
        taken = stem in sys.modules or stem in sys.stdlib_module_names or not stem.isidentifier()
        return f"optrace_program_{stem}" if taken else stem


@contextmanager
def _imports_from(folder: Path, argv: list[str]) -> Iterator[None]:
    """Import from ``folder`` as Python does for a script in it, and put the interpreter back afterwards.

    Modules found in the folder are forgotten, so that the next program's ``utils`` is its own.
    """
    path, old_argv, modules = list(sys.path), sys.argv, dict(sys.modules)
    sys.path.insert(0, str(folder))
    sys.argv = argv
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path
        sys.argv = old_argv
        for name in [name for name in sys.modules if modules.get(name) is not sys.modules[name]]:
            if name in modules:
                sys.modules[name] = modules[name]
            elif _found_in(folder, name.partition(".")[0]):
                del sys.modules[name]


def _found_in(folder: Path, package: str) -> bool:
    """Whether a top-level package or module lies directly in ``folder`` (or was forgotten just before)."""
    module = sys.modules.get(package)
    places = getattr(module, "__path__", None) or [getattr(module, "__file__", None)]
    return module is None or any(place and Path(place).parent == folder for place in places)


# -- which entry --------------------------------------------------------------------------------------

Rank = Literal["Model", "model", "function", "script"]


def _rank(file: _File) -> Rank:
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


def _script(file: _File, options: Options) -> Program:
    _refuse_model_options(options, f"{file.path.name} runs as a script")
    return Program(
        name=file.path.name,
        describe=f"{file.path.name} as a script",
        steps=options.steps,
        warmup=options.warmup or 0,
        marks_steps=True,
        _set_up=lambda _: lambda: file.load("__main__"),
    )


def _function(file: _File, options: Options) -> Program:
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
    _refuse_model_options(options, f"{name}() of {where} is called as it is")
    return Program(
        name=f"{where}:{name}",
        describe=f"{name}() of {where}",
        steps=options.steps,
        warmup=options.warmup or 0,
        marks_steps=marks_steps,
        _set_up=lambda _: entry,
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
            args, kwargs = _arguments(module.get_init_inputs()) if init else ((), {})
            model = entry(*args, **kwargs)
        if not callable(model):
            raise ProgramError(f"{name}() of {where} made a {type(model).__name__}, which cannot be called")
        return _step(model, _inputs(module, source, options), options, recorder)

    made = f"{name}({f'*{init}()' if init else ''})" if build else name
    inputs = f"{source}()" if callable(getattr(module, source)) else source
    return Program(
        name=f"{where}:{name}",
        describe=f"{made} with {inputs} of {where}: {_describe_step(options)}",
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


def _names_of(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if not name.startswith("_") and callable(value)]
    return ", ".join(names) or "no callable"


# -- the step around a model --------------------------------------------------------------------------


def _arguments(value: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments: a tuple or list, a dict, or a single value."""
    if isinstance(value, Mapping):
        return (), dict(value)
    if isinstance(value, tuple | list):
        return tuple(value), {}
    return (value,), {}


def _inputs(module: ModuleType, source: str, options: Options) -> tuple[tuple[Any, ...], dict[str, Any]]:
    value = getattr(module, source)
    if not callable(value):
        if options.batch is not None:
            raise ProgramError(
                f"--batch {options.batch}: {source} is fixed; define get_inputs(batch=...) for it"
            )
        return _arguments(value)
    if options.batch is None:
        return _arguments(value())
    if "batch" not in inspect.signature(value).parameters:
        raise ProgramError(f"--batch {options.batch}: {source}() takes no batch=; give it that parameter")
    return _arguments(value(batch=options.batch))


def _step(
    model: Callable[..., Any],
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    options: Options,
    recorder: Recorder,
) -> Callable[[], object]:
    """Placed and converted, ready to be called again and again."""
    weights_dtype = None if options.autocast or options.dtype is None else DTYPES[options.dtype]
    if isinstance(model, torch.nn.Module):
        model = recorder.place(model if weights_dtype is None else model.to(weights_dtype))
    args, kwargs = recorder.place(_converted(inputs, weights_dtype))

    def forward() -> Any:
        with _autocast(options, recorder):
            return model(*args, **kwargs)

    if options.train:
        return _training_step(model, forward, options, recorder)

    def inference() -> object:
        with torch.no_grad() if options.no_grad else nullcontext():
            return forward()

    return inference


def _training_step(
    model: Callable[..., Any], forward: Callable[[], Any], options: Options, recorder: Recorder
) -> Callable[[], object]:
    parameters = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    if not parameters:
        raise ProgramError("--train: the model has no parameters to train")
    assert isinstance(model, torch.nn.Module)
    model.train()
    optimizer = OPTIMIZERS[options.optimizer](parameters)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        output = forward()
        with _autocast(options, recorder):
            loss = _loss(output)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()

    return step


def _loss(output: Any) -> torch.Tensor:
    """The output's own loss, else the mean of its floating-point tensors (the sum of means of several)."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    leaves = pytree.tree_leaves(dict(output) if isinstance(output, Mapping) else output)
    means = [leaf.mean() for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if not means:
        raise ProgramError(
            f"--train: no tensor of the output ({type(output).__name__}) depends on a parameter, nor has it a .loss"
        )
    return reduce(add, means)


def _converted(value: T, dtype: torch.dtype | None) -> T:
    if dtype is None:
        return value
    converted: T = pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, value
    )
    return converted


def _autocast(options: Options, recorder: Recorder) -> AbstractContextManager[Any]:
    if not options.autocast:
        return nullcontext()
    return torch.autocast(recorder.device, dtype=DTYPES[options.dtype or "bfloat16"])


def _describe_step(options: Options) -> str:
    if options.train:
        parts = [f"training step with {options.optimizer}"]
    else:
        parts = ["forward pass under no_grad" if options.no_grad else "forward pass with gradients on"]
    if options.autocast:
        parts.append(f"autocast to {options.dtype or 'bfloat16'}")
    elif options.dtype:
        parts.append(options.dtype)
    if options.batch is not None:
        parts.append(f"batch {options.batch}")
    return ", ".join(parts)


# -- options and exits --------------------------------------------------------------------------------


def _check(options: Options) -> None:
    for name, value, table in (
        ("optimizer", options.optimizer, OPTIMIZERS),
        ("dtype", options.dtype, DTYPES),
    ):
        if value is not None and value not in table:
            raise ProgramError(f"unknown {name} {value!r} (one of {', '.join(table)})")
    for name, count, least in (
        ("steps", options.steps, 1),
        ("warmup", options.warmup, 0),
        ("batch", options.batch, 1),
    ):
        if count is not None and count < least:
            raise ProgramError(f"--{name} {count}: at least {least}")
    if options.optimizer != Options().optimizer and not options.train:
        raise ProgramError(f"--optimizer {options.optimizer} needs --train")
    if options.train and options.no_grad:
        raise ProgramError("--train needs gradients: leave out --no-grad")


def _refuse_model_options(options: Options, why: str) -> None:
    for name in MODEL_OPTIONS:
        if getattr(options, name) != getattr(Options(), name):
            raise ProgramError(f"--{name.replace('_', '-')} needs a model and its inputs, and {why}")


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
