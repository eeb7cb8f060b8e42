"""Whole files or none: written beside the target under another name, then renamed over it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path``, or raise ``OSError`` and leave what was there as it was.

    A link is followed: the file it names is replaced, not the link. A device or a pipe (``/dev/stdout``) is written to.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    target = path.resolve()
    temporary = target.with_name(f".optrace-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def cannot_write(path: Path) -> str:
    """Why no file can be made at ``path``; empty where nothing speaks against it."""
    try:
        return _obstacle(path)
    except OSError as error:  # a name that is too long
        return error.strerror or str(error)


def _obstacle(path: Path) -> str:
    if path.is_dir():
        return "it is a folder"
    if path.exists() and not path.is_file():
        return "" if os.access(path, os.W_OK) else "no permission to write to it"
    folder = path.resolve().parent
    if not folder.is_dir():
        return f"there is no folder {folder}"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"no permission to write in {folder}"
    return ""
