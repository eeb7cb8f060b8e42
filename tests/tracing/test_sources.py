"""Whose code a frame is."""

import os
import sysconfig

import torch

from optrace.tracing import sources
from optrace.tracing.sources import is_user_code, shortened


def test_installed_commands_and_libraries_are_not_the_users(tmp_path) -> None:
    assert not is_user_code(os.path.join(sysconfig.get_path("scripts"), "optrace"))
    assert not is_user_code(torch.__file__)
    assert not is_user_code(os.__file__)
    assert is_user_code(str(tmp_path / "optrace.py"))


def test_a_library_installed_in_the_working_folder_is_named_from_where_it_was_installed(
    tmp_path, monkeypatch
) -> None:
    """As in a virtual environment that lies in the project: findings pass over files of torch by that name."""
    installed = tmp_path / ".venv" / "site-packages"
    monkeypatch.setattr(sources, "_LIBRARY_ROOTS", (f"{installed}{os.sep}",))
    monkeypatch.chdir(tmp_path)
    assert shortened(str(installed / "torch" / "nn" / "functional.py")) == os.path.join(
        "torch", "nn", "functional.py"
    )
    assert shortened(str(tmp_path / "model.py")) == "model.py"
