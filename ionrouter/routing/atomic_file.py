"""Replacing a file whole: readers see the old text or the new, never half of it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write `data` to `path` through a temporary file beside it; keeps an old file's mode, follows links."""
    target = path.resolve()
    if target.exists():
        mode = target.stat().st_mode & 0o7777
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
