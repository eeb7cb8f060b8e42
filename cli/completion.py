"""``optrace completion``: the script by which a shell completes commands, options and profile names.

The scripts, and how a shell asks, are typer's. A shell asks by running the command with ``_OPTRACE_COMPLETE`` set.
"""

from __future__ import annotations

import os
from enum import StrEnum
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.completion import (  # type: ignore[attr-defined]  # typer lists no exports
    completion_init,
    get_completion_script,
)
from typer.core import TyperCommand

from .dispatch import COMMANDS, DEFAULT

app = typer.Typer(add_completion=False, rich_markup_mode=None)

#: What a shell sets to ask for completions: ``complete_bash``, and so on.
VARIABLE = "_OPTRACE_COMPLETE"

_WHERE = {
    "bash": "echo 'eval \"$(optrace completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(optrace completion zsh)\"' >> ~/.zshrc   # after compinit",
    "fish": "optrace completion fish > ~/.config/fish/completions/optrace.fish",
}


class Shell(StrEnum):
    """Those that there is a script for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command(
    epilog="\n".join(("\b", "To have it in every shell:", *(f"  {line}" for line in _WHERE.values())))
)
def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish")],
) -> None:
    """Print the script that completes optrace's commands, options and profile names in a shell.

    eval "$(optrace completion bash)"
    """
    print(get_completion_script(prog_name="optrace", complete_var=VARIABLE, shell=shell.value))


def answer() -> str:
    """What the shell that asks should offer, in the form that it reads; empty for anything that is no question."""
    action, _, shell = os.environ.get(VARIABLE, "").partition("_")
    completion_init()
    # typer brings a click of its own since 0.16.
    clicks = TyperCommand.__mro__[1].__module__.rpartition(".")[0]
    kind: Any = import_module(f"{clicks}.shell_completion").get_completion_class(shell)
    if action != "complete" or kind is None:
        return ""
    words, _ = kind(None, {}, "optrace", VARIABLE).get_completion_args()
    by_name = not words or words[0] in COMMANDS
    command = _all_commands() if by_name else _command(DEFAULT)
    return str(kind(command, {}, "optrace", VARIABLE).complete())


def _command(name: str) -> Any:
    return typer.main.get_command(import_module(f".{name}", __package__).app)


def _all_commands() -> Any:
    group = typer.Typer(add_completion=False)
    for name, what in COMMANDS.items():
        [registered] = import_module(f".{name}", __package__).app.registered_commands
        group.command(name, cls=registered.cls, help=what)(registered.callback)
    return typer.main.get_command(group)
