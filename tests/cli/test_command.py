"""The command as installed: quick to answer, one table of commands, choices that the library knows."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from optrace.cli import dispatch, options
from optrace.cli.progress import progress
from rich.console import Console

from optrace.cost.profiles import gpu_profiles
from optrace.program import OPTIMIZERS
from optrace.rendering import FORMATS
from optrace.tracing import DEVICES, MODES

HEAVY = ("torch", "numpy", "networkx", "optrace.graph", "optrace.rendering")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["gpus", "--help"], ["--nonsense"]])
def test_quick_answers_import_nothing_heavy(words: list[str]) -> None:
    source = f"import sys; from optrace.cli import main; main({words}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "optrace.cli.trace" in loaded or "optrace.cli.gpus" in loaded
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize("command", [["-m", "optrace.cli"], ["-c", "from optrace.cli import run; run()"]])
def test_the_command_exits_with_its_code(command: list[str]) -> None:
    done = subprocess.run([sys.executable, *command, "--depth", "x", "m.py"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("optrace: Invalid value for '--depth'")


def test_a_reader_who_leaves_does_not_stop_the_work(tmp_path: Path) -> None:
    """``optrace model.py -o graph.json | true``"""
    (tmp_path / "model.py").write_text("import torch\ndef main(): torch.ones(2) + 1")
    command = [sys.executable, "-m", "optrace.cli", "model.py", "--mode", "cpu", "-o", "graph.json"]
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(command, cwd=tmp_path, stdout=write_end, stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "graph.json").exists()


def test_help_groups_the_options_and_names_the_other_commands(optrace) -> None:
    ran = optrace("--help")
    assert ran.code == 0
    assert ran.out.startswith("Usage: optrace [OPTIONS] TARGET [-- ARGUMENTS OF THE PROGRAM]\n")
    for heading in ("Arguments:", "Options:", "Running:", "Model and inputs:", "Prices:"):
        assert f"\n{heading}\n" in ran.out
    told = " ".join(ran.out.split())
    others = [name for name in dispatch.COMMANDS if name != dispatch.DEFAULT]
    assert all(f"optrace {name} {dispatch.COMMANDS[name]}" in told for name in others)
    # A line a command.
    assert all(f"\n  optrace {name} " in ran.out for name in others)
    assert optrace("trace", "--help").out == ran.out


def test_help_names_every_format(optrace) -> None:
    told = " ".join(optrace("--help").out.split())
    written = told.partition("-o, --out FILE write ")[2].partition("; repeatable")[0]
    assert sorted(written.replace(" or ", " ").split()) == sorted(FORMATS)


def test_version(optrace) -> None:
    assert optrace("--version").out.startswith("optrace ")


@pytest.mark.parametrize("name", dispatch.COMMANDS)
def test_every_command_is_a_module(name: str) -> None:
    assert import_module(f"optrace.cli.{name}").app.registered_commands


def test_choices_are_those_of_the_library() -> None:
    assert tuple(options.Mode) == MODES
    assert tuple(options.Device) == DEVICES


def test_the_default_optimizer_exists() -> None:
    assert "adamw" in OPTIMIZERS


def test_gpus_lists_each_profile_with_its_source(optrace) -> None:
    ran = optrace("gpus")
    assert ran.code == 0
    for profile in gpu_profiles().values():
        assert profile.name in ran.out
        assert f"{profile.key}: {profile.source}" in ran.out
        assert all(sentence in ran.out for sentence in profile.note.removesuffix(".").split(". "))


def test_what_most_profiles_note_is_said_once(optrace) -> None:
    assert optrace("gpus").out.count("kernel rates and CUDA graph figures are those measured on an H200") == 1


def test_progress_shows_the_count_on_a_terminal_only() -> None:
    for terminal in (True, False):
        shown = io.StringIO()
        with progress(lambda: 1234, Console(file=shown, force_terminal=terminal, width=60)):
            pass
        assert ("1,234 ops recorded" in shown.getvalue()) == terminal


def test_the_command_as_a_module_of_the_tree() -> None:
    """``cli`` may be imported before ``optrace``."""
    ran = subprocess.run(
        [sys.executable, "-m", "cli", "--version"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout.startswith("optrace ")) == (0, True), ran.stderr
