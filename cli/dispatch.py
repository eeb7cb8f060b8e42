"""The table of commands, and ``main``.

A new command is a module of this package with a one-command ``app`` and a row in ``COMMANDS``. Modules are
imported when their command is asked for.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

import typer

from .errors import BAD_INPUT, DONE, INTERRUPTED, BadInput, tell

#: Command: what it does. Anything else is an argument of ``DEFAULT``.
COMMANDS: Mapping[str, str] = {
    "trace": "run a program, price its ops, draw the graph (the default)",
    "check": "hold a program against a budget of launches, bytes, memory, waits and findings",
    "diff": "compare two recorded graphs: figures, and ops that came, went or moved",
    "sweep": "price a program on several GPUs, in several batch sizes and dtypes",
    "scoreboard": "lay several recorded graphs side by side: passes over one program",
    "measure": "measure a program's step on this machine's GPU, beside the prediction",
    "accuracy": "price recorded programs and lay what was measured beside",
    "calibrate": "measure this machine's GPU and host, and keep what came out as profiles",
    "gpus": "list the GPU profiles and where their numbers come from",
    "explain": "say how an op is priced, by which rule and file",
    "completion": "print the script that completes commands and profile names in bash, zsh or fish",
}
DEFAULT = "trace"

#: typer re-exports one kind of usage error; this is what all kinds are.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (without the program's name) and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = words.pop(0) if words and words[0] in COMMANDS else DEFAULT
    app: typer.Typer = import_module(f".{name}", __package__).app
    command = typer.main.get_command(app)
    try:
        code = command.main(words, prog_name=_shown(name), standalone_mode=False)
    except _UsageError as error:
        tell(f"{_message(error)} (see {_shown(name)} --help)")
        return BAD_INPUT
    except BadInput as error:
        tell(str(error))
        return BAD_INPUT
    except (typer.Abort, KeyboardInterrupt):
        tell("interrupted")
        return INTERRUPTED
    return code if isinstance(code, int) else DONE


def run() -> None:
    """The installed command. A shell that asks for completions gets those and nothing else."""
    if "_OPTRACE_COMPLETE" in os.environ:
        from .completion import answer

        print(answer())
        sys.exit(DONE)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of files and modules may hold letters that the terminal's encoding has not.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main())


def other_commands() -> list[tuple[str, str]]:
    """For the help text of the default command: the others, and what they do."""
    return [(_shown(name), what) for name, what in COMMANDS.items() if name != DEFAULT]


def _shown(name: str) -> str:
    return "optrace" if name == DEFAULT else f"optrace {name}"


def _message(error: Exception) -> str:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    # typer lists choices line by line, and 0.29 leaves the word of its validator in.
    return " ".join(str(message).split()).replace(": Value error, ", ": ").rstrip(".")
