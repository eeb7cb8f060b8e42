"""The magics, with a shell that has what they ask of IPython's; and IPython itself where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import optrace
from optrace.report import Report


class Shell:
    """As much of ``InteractiveShell`` as a magic sees."""

    def __init__(self) -> None:
        self.user_ns: dict[str, Any] = {}
        self.magics: dict[str, Callable[..., Any]] = {}
        self.compile = self

    def register_magic_function(self, function: Callable[..., Any], magic_kind: str, magic_name: str) -> None:
        assert magic_kind == "line_cell"
        self.magics[magic_name] = function

    def transform_cell(self, code: str) -> str:
        return code

    def cache(self, _code: str) -> str:
        return "<ipython-input-1>"


@pytest.fixture
def shell() -> Shell:
    shell = Shell()
    optrace.load_ipython_extension(shell)
    return shell


CELL = "import torch\nx = torch.ones(64, device='cuda')\ny = x * 2\n"


def test_a_cell_runs_in_the_notebooks_namespace_and_gives_its_report(shell: Shell) -> None:
    report = shell.magics["optrace"]("--gpu h100 --mode fake", CELL)
    assert isinstance(report, Report)
    assert [node.op for node in report.graph] == ["aten.ones.default", "aten.mul.Tensor"]
    assert report.pricing.gpu.key == "h100"
    assert str(report.graph.source(1).line) == "<ipython-input-1>:3"
    assert shell.user_ns["y"].shape == (64,)


def test_a_line(shell: Shell) -> None:
    exec("import torch\nx = torch.ones(4)", shell.user_ns)
    report = shell.magics["optrace"]("--mode=cpu --device cpu x + x * 2")
    assert [node.op for node in report.graph] == ["aten.mul.Tensor", "aten.add.Tensor"]


@pytest.mark.parametrize(
    ("line", "cell", "said"),
    [
        ("--gpu h100", "  ", "was given nothing to run"),
        ("", None, "was given nothing to run"),
        ("--mode fast", "1", "invalid choice: 'fast'"),
        ("--gpus h100", "1", "unrecognized arguments: --gpus h100"),
    ],
)
def test_what_cannot_be_run(shell: Shell, line: str, cell: str | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        shell.magics["optrace"](line, cell)


@pytest.mark.parametrize("cell", [None, "1"])
def test_help_lists_the_options_and_runs_nothing(
    shell: Shell, cell: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.magics["optrace"]("--help", cell) is None
    said = capsys.readouterr().out
    assert said.startswith("usage: %optrace [options] statement, or %%optrace [options] above a cell")
    assert all(option in said for option in ("--gpu", "--host", "--mode", "--device", "--assume"))


def test_in_ipython() -> None:
    interactive = pytest.importorskip("IPython.core.interactiveshell", reason="IPython is an extra")
    shell = interactive.InteractiveShell()
    shell.run_line_magic("load_ext", "optrace")
    ran = shell.run_cell(f"%%optrace --mode fake\n{CELL}")
    ran.raise_error()
    assert isinstance(ran.result, Report)
    data, _ = shell.display_formatter.format(ran.result)
    assert set(data) >= {"text/plain", "text/html", "image/png"}
    graph, _ = shell.display_formatter.format(ran.result.graph)
    assert "image/svg+xml" in graph
