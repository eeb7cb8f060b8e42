"""Profiles as TOML files, whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec
import tomli_w

from optrace.cost.host_profile import HostProfile
from optrace.cost.profiles import GpuProfile


def profile_text(profile: GpuProfile | HostProfile) -> str:
    """The profile as ``--gpu`` and ``--host`` read it. What is not known is left out, and so is what was not measured
    but stands for every profile: it follows the version that reads it."""
    default = {field.name: field.default for field in msgspec.structs.fields(profile)}
    fields = msgspec.to_builtins(profile)
    return tomli_w.dumps(
        {name: value for name, value in fields.items() if value is not None and value != default[name]}
    )


def write_profile(profile: GpuProfile | HostProfile, path: Path) -> None:
    """Write ``path`` and the folders it needs: into a file beside it, then renamed. Raises ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(profile_text(profile))
        os.chmod(beside, 0o644)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
