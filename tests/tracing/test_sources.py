"""Whose code a frame is."""

import os
import sysconfig

import torch

from optrace.tracing.sources import is_user_code


def test_installed_commands_and_libraries_are_not_the_users(tmp_path) -> None:
    assert not is_user_code(os.path.join(sysconfig.get_path("scripts"), "optrace"))
    assert not is_user_code(torch.__file__)
    assert not is_user_code(os.__file__)
    assert is_user_code(str(tmp_path / "optrace.py"))
