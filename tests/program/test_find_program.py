"""Which entry of a file is meant, how it is imported, and what cannot be run."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from optrace.program import Options, ProgramError, find_program

Write = Callable[..., Path]


class Log:
    """A recorder that notes what is done to it."""

    device = "cpu"

    def __init__(self) -> None:
        self.events: list[Any] = []

    def place(self, value: Any) -> Any:
        self.events.append("place")
        return value

    @contextmanager
    def recording(self, *, warmup: int = 0, steps: int = 1) -> Iterator[None]:
        self.events.append(("start", warmup, steps))
        yield
        self.events.append("stop")

    def begin_run(self) -> None:
        self.events.append("run")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(source: str, name: str = "model.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(source))
        return path

    return write


def describe(target: object, **options: Any) -> str:
    with find_program(str(target), Options(**options)) as program:
        return program.describe


def run(target: object, **options: Any) -> Log:
    log = Log()
    with find_program(str(target), Options(**options)) as program:
        program.run(log)
    return log


MODEL = "import torch\nclass Model(torch.nn.Linear): pass\n"
NET = "import torch\nmodel = torch.nn.Linear(2, 3)\n"

CHOICES = [
    # rank 1
    (MODEL + "def main(): pass\ndef other(): pass", ":other", "other() of model.py"),
    (NET + "inputs = torch.ones(1, 2)\ndef main(): pass", ":model", "model with inputs of model.py: forward"),
    (
        MODEL + "class Net:\n  def encode(x): pass\ninputs = (1,)",
        ":Net.encode",
        "Net.encode with inputs of model.py",
    ),
    ("def main(): pass", ":__main__", "model.py as a script"),
    # rank 2
    (
        MODEL + "def get_inputs(): return []\ndef get_init_inputs(): return [2, 3]\ndef main(): pass",
        "",
        "Model(*get_init_inputs()) with get_inputs() of model.py",
    ),
    (MODEL + "def get_inputs(): return []\nmodel = Model(1, 1)", "", "Model() with get_inputs() of model.py"),
    # rank 3
    (
        NET + "example_inputs = (torch.ones(1, 2),)\ndef run(): pass",
        "",
        "model with example_inputs of model.py",
    ),
    (NET.replace("model =", "def model(): return") + "inputs = ()", "", "model() with inputs of model.py"),
    (MODEL + "model = Model(2, 3)\ninputs = torch.ones(1, 2)", "", "model with inputs of model.py"),
    (
        "try:\n  import torch\n  model = torch.relu\nfinally:\n  inputs = 1",
        "",
        "model with inputs of model.py",
    ),
    # rank 4
    ("def main(): pass\nif __name__ == '__main__': main()", "", "main() of model.py"),
    ("def step(n=3): pass", "", "step() of model.py"),
    ("def run(): pass\ndef main(arguments): pass\nfor step in (): pass", "", "run() of model.py"),
    # rank 5
    ("def main(arguments): pass\nif __name__ == '__main__': main(1)", "", "model.py as a script"),
    (NET + "model(torch.ones(2))", "", "model.py as a script"),
    ("from os import path as Model, sep as step", "", "model.py as a script"),
    ("async def main(): pass", "", "main() of model.py"),
    ("if __name__ == '__main__':\n  inputs = 1\n  def main(): pass", "", "model.py as a script"),
    ("", "", "model.py as a script"),
]


@pytest.mark.parametrize(("source", "name", "wanted"), CHOICES)
def test_the_best_rank_is_chosen(write: Write, source: str, name: str, wanted: str) -> None:
    assert describe(f"{write(source)}{name}").startswith(wanted)


ERRORS = [
    ("def main(): pass\ndef run(): pass", "", r"has main\(\) and run\(\): name the one .*model\.py:main"),
    ("def main(): pass\ndef step(): pass\ndef run(): pass", "", r"main\(\) and run\(\) and step\(\)"),
    (NET + "inputs = 1\ndef get_inputs(): pass", "", "has inputs and get_inputs"),
    (MODEL, "", r"defines Model and no get_inputs\(\): add get_inputs"),
    (MODEL + "if __name__ == '__main__': Model(1, 1)", "", r"as a script with model\.py:__main__"),
    (
        MODEL + "inputs = 1",
        ":Model",
        "Model of model.py takes arguments and there are none: define get_inputs there",
    ),
    (NET, ":model", "define inputs or example_inputs or get_inputs there"),
    ("def f(x): pass", ":f", "f of model.py takes arguments and there are none"),
    ("def f(): pass", ":g", r"has no 'g' \(it has f\)"),
    ("x = 3", ":x", "x is of type int: neither a callable nor a model"),
    ("model = 3\ninputs = 1", "", "model of model.py is of type int"),
    ("", ":", "nothing after the colon"),
]


@pytest.mark.parametrize(("source", "name", "message"), ERRORS)
def test_what_cannot_be_chosen_is_an_error(write: Write, source: str, name: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        run(f"{write(source)}{name}")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nothing.py", "no such file: nothing.py"),
        ("folder/nothing", "no such file: folder/nothing"),
        (".", r"\. is a folder: name the file"),
        ("nothing", "no such file: nothing$"),
        ("graph.svg", "no such file: graph.svg$"),
        ("json.tool", r"no such file: json.tool \(for a module .* json.tool:main\)"),
        ("nothing:main", "no module named 'nothing'"),
        ("json.nothing:main", "no module named 'json.nothing'"),
        ("json:nothing", "json has no 'nothing'"),
    ],
)
def test_what_is_not_there(
    target: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProgramError, match=message):
        describe(target)


def test_a_module_of_a_package_is_found_from_the_current_folder(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("from . import part\ndef go(): return part.x", "package/__init__.py")
    write("x = 1", "package/part.py")
    write("import missing_library", "package/broken.py")
    monkeypatch.chdir(tmp_path)
    assert describe("package:go") == "go() of package"
    assert "package.part" not in sys.modules
    with pytest.raises(ModuleNotFoundError, match="missing_library"):
        describe("package.broken:go")


# -- importing ----------------------------------------------------------------------------------------


def test_siblings_can_be_imported_and_are_forgotten(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    before = list(sys.path), list(sys.argv)
    for number in (1, 2):
        write(f"number = {number}", f"{number}/helper.py")
        write(f"number = {number}", f"{number}/without_init/part.py")
        path = write(
            """
            from helper import number
            from without_init import part
            def main():
                import helper
                print(number, helper.number, part.number)
            """,
            f"{number}/model.py",
        )
        run(path)
    assert capsys.readouterr().out == "1 1 1\n2 2 2\n"
    assert (list(sys.path), list(sys.argv)) == before
    assert not {"helper", "model", "without_init", "without_init.part"} & set(sys.modules)


def test_the_file_is_a_module_while_it_runs(write: Write) -> None:
    path = write(
        """
        from __future__ import annotations
        import pickle
        from dataclasses import dataclass

        @dataclass(kw_only=True)
        class Point:
            x: int

        assert __name__ == "model", __name__
        assert __file__.endswith("model.py")

        def main():
            import model
            assert model.Point is Point
            assert pickle.loads(pickle.dumps(Point(x=1))) == Point(x=1)
        """
    )
    run(path)


def test_a_file_named_like_a_library_does_not_hide_it(write: Write) -> None:
    run(write("import pickle as library\ndef main(): library.dumps(1)", "json.py"))
    assert sys.modules["json"].__name__ == "json"
    assert "optrace_program_json" not in sys.modules
    assert pickle.__file__ == sys.modules["pickle"].__file__


def test_a_script_runs_once_as_main_with_its_own_arguments(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    main_module = sys.modules["__main__"]
    path = write(
        """
        import sys
        print("import")
        if __name__ == "__main__":
            import __main__
            print(sys.argv[1:], __main__.__file__ == __file__)
        """
    )
    with find_program(str(path), Options(args=("--small", "3"))) as program:
        assert capsys.readouterr().out == ""
        log = Log()
        program.run(log)
    assert capsys.readouterr().out == "import\n['--small', '3'] True\n"
    assert log.events == [("start", 0, 1), "stop"]
    assert sys.modules["__main__"] is main_module


@pytest.mark.parametrize("code", ["", "0", "None"])
def test_a_script_may_exit(write: Write, code: str) -> None:
    assert run(write(f"import sys\nsys.exit({code})")).events[-1] == "stop"


def test_a_failing_exit_passes_through(write: Write) -> None:
    with pytest.raises(SystemExit) as exit:
        run(write("raise SystemExit(3)"))
    assert exit.value.code == 3


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("def broken(:", SyntaxError),
        ("import missing_library", ModuleNotFoundError),
        ("1 / 0", ZeroDivisionError),
        ("1 / 0\ndef main(): pass", ZeroDivisionError),
        ("def main(): raise KeyError(3)", KeyError),
    ],
)
def test_the_programs_own_exceptions_pass_through(write: Write, source: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        run(write(source))
    assert "model" not in sys.modules


def test_a_file_that_is_not_python(write: Write, tmp_path: Path) -> None:
    (tmp_path / "bytes.py").write_bytes(b"x = 1\0")
    with pytest.raises((ProgramError, SyntaxError)):
        run(tmp_path / "bytes.py")


# -- steps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "options", "events"),
    [
        ("def main(): print('x', end='')", {}, [("start", 0, 1), "run", "stop"]),
        (
            "def main(): print('x', end='')",
            {"steps": 2, "warmup": 3},
            [("start", 0, 1), "run", "run", "stop"],
        ),
        (
            "import optrace\n@optrace.step\ndef main(): print('x', end='')",
            {"warmup": 1},
            [("start", 1, 1), "stop"],
        ),
        (
            "from optrace import step as s\ndef main(): print('x', end='')",
            {"steps": 2},
            [("start", 0, 2), "stop"],
        ),
        ("print('x', end='')", {"steps": 2, "warmup": 1}, [("start", 1, 2), "stop"]),
    ],
)
def test_steps_are_repeated_unless_the_program_marks_them(
    write: Write, capsys: pytest.CaptureFixture[str], source: str, options: dict[str, int], events: list[Any]
) -> None:
    assert run(write(source), **options).events == events
    marks = "optrace" in source or "def" not in source
    assert capsys.readouterr().out == "x" * (
        1 if marks else options.get("steps", 1) + options.get("warmup", 0)
    )


@pytest.mark.parametrize("target", ["model.py", "model.py:main", "model.py:__main__"])
def test_a_file_of_a_package_imports_relatively(write: Write, target: str) -> None:
    write("", "outer_pack/__init__.py")
    write("VALUE = 1", "outer_pack/common.py")
    write("", "outer_pack/inner/__init__.py")
    write("SIZE = 2", "outer_pack/inner/sizes.py")
    source = """
    from . import sizes
    from ..common import VALUE
    from outer_pack.inner.sizes import SIZE
    def main(): assert (sizes.SIZE, SIZE, VALUE) == (2, 2, 1)
    """
    path = write(source, "outer_pack/inner/model.py")
    run(f"{path.parent}/{target}")
    assert "outer_pack" not in sys.modules
