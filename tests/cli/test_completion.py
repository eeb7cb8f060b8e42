"""The scripts are printed, and what a shell would be offered is the right thing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from optrace.cli.completion import VARIABLE, answer

from optrace.cost.profiles import gpu_profiles


def offered(monkeypatch: pytest.MonkeyPatch, shell: str, line: str) -> str:
    words = line.split(" ")
    monkeypatch.setenv(VARIABLE, f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    return answer()


@pytest.mark.parametrize(("shell", "mark"), [("bash", "complete -o default"), ("zsh", "#compdef optrace"), ("fish", "complete --command optrace")])  # fmt: skip
def test_the_script_of_a_shell(optrace, shell: str, mark: str) -> None:
    ran = optrace("completion", shell)
    assert ran.code == 0
    assert mark in ran.out
    assert VARIABLE in ran.out


def test_a_shell_that_there_is_no_script_for(optrace) -> None:
    ran = optrace("completion", "tcsh")
    assert ran.code == 2
    assert "'tcsh'" in ran.err


def test_no_shell_is_told_in_one_line(optrace) -> None:
    ran = optrace("completion")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert all(shell in ran.err for shell in ("bash", "zsh", "fish"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    "command", ["optrace model.py", "optrace check model.py", "optrace measure model.py"]
)
def test_profiles_by_the_beginning_of_their_name(
    monkeypatch: pytest.MonkeyPatch, shell: str, command: str
) -> None:
    found = offered(monkeypatch, shell, f"{command} --gpu h2")
    assert "h200" in found
    assert "l4" not in found
    everything = offered(monkeypatch, shell, f"{command} --gpu ")
    assert all(name in everything for name in gpu_profiles())


def test_commands_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    assert offered(monkeypatch, "bash", "optrace sc").split() == ["scoreboard"]
    assert offered(monkeypatch, "bash", "optrace model.py --find").split() == ["--findings"]
    assert offered(monkeypatch, "bash", "optrace completion f").split() == ["fish"]
    assert offered(monkeypatch, "bash", "optrace my_mod") == ""  # the shell then offers files


def asked_of(shell: str, question: str, optrace, folder: Path) -> list[str]:
    """What a real shell prints that has read the script, in ``folder``."""
    (folder / "script").write_text(optrace("completion", shell).out)
    command = folder / "optrace"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m optrace.cli "$@"\n')
    command.chmod(0o755)
    ran = subprocess.run(
        [shell, "-c", question],
        cwd=folder,
        env={**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_itself(optrace, tmp_path: Path) -> None:
    question = 'source script; COMP_WORDS=(optrace model.py --gpu h2); COMP_CWORD=3; _optrace_completion optrace; echo "${COMPREPLY[@]}"'
    assert asked_of("bash", question, optrace, tmp_path) == ["h200"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_itself(optrace, tmp_path: Path) -> None:
    question = "source script; complete -C 'optrace model.py --gpu h2'"
    assert asked_of("fish", question, optrace, tmp_path) == ["h200"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_itself(optrace, tmp_path: Path) -> None:
    """Outside of its line editor: the function as zsh calls it, with what it would hand to ``_describe`` printed."""
    question = (
        "compdef() { :; }; _describe() { :; }; _arguments() { print -r -- $*; }; words=(optrace model.py --gpu h2); CURRENT=4; "
        "source ./script; _optrace_completion"
    )
    assert any("h200" in word for word in asked_of("zsh", question, optrace, tmp_path))
