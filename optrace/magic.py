"""``%load_ext optrace``: the magics ``%optrace`` for a line and ``%%optrace`` for a cell of a notebook.

    %%optrace --gpu h100
    y = model(x.cuda())
    y.sum().backward()

The cell runs under the recorder, in the notebook's own namespace, and its report is shown.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, NoReturn

from optrace.api import trace
from optrace.tracing import MODES

if TYPE_CHECKING:
    from optrace.report import Report


class _Parser(argparse.ArgumentParser):
    """Raises in place of leaving the process, which would be the notebook's."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"%optrace: {message}")


def load_ipython_extension(shell: Any) -> None:
    """IPython calls it for ``%load_ext optrace``."""

    def optrace(line: str, cell: str | None = None) -> Report | None:
        """Run a statement or a cell under the recorder and show its report; ``%optrace --help`` lists the options."""
        options, code = (line, cell) if cell is not None else _split(line)
        if options.split()[:1] == ["--help"]:
            print(_parser().format_help())
            return None
        return _run(shell, options, code)

    shell.register_magic_function(optrace, magic_kind="line_cell", magic_name="optrace")


def _parser() -> _Parser:
    parser = _Parser(
        prog="%optrace",
        usage="%%optrace [options] statement, or %%%%optrace [options] above a cell",
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("--gpu", default="h200", help="the profile to price for (default: h200)")
    parser.add_argument("--host", help="the host's profile (default: this machine as calibrated)")
    parser.add_argument(
        "--mode", choices=MODES, default="auto", help="auto is cuda where there is a GPU, else fake"
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="where the program keeps its tensors"
    )
    parser.add_argument(
        "--assume",
        choices=("error", "zero", "worst"),
        default="error",
        help="what .item() answers where nothing is computed",
    )
    return parser


def _split(line: str) -> tuple[str, str]:
    """Options in front, then the code of a line magic."""
    words = line.split()
    place = 0
    while place < len(words) and words[place].startswith("--"):
        place += 1 if "=" in words[place] or words[place] == "--help" else 2
    return " ".join(words[:place]), line.split(maxsplit=place)[place] if place < len(words) else ""


def _run(shell: Any, options: str, code: str) -> Report:
    given = vars(_parser().parse_args(options.split()))
    if not code.strip():
        raise ValueError(
            "%optrace was given nothing to run: name a statement, or write %%optrace above a cell"
        )
    source = shell.transform_cell(code)
    compiled = compile(source, shell.compile.cache(source), "exec")
    with trace(**given) as traced:
        exec(compiled, shell.user_ns)
    return traced.report()
