"""A model's files before they are opened: one could wait for ever for a FIFO, or read a device for ever."""

from __future__ import annotations

import stat
from pathlib import Path

from ionrouter.errors import ConfigError

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def require_regular(path: Path, name: str, *, or_folder: bool = False) -> None:
    """Raise ConfigError naming the file and what it is; FileNotFoundError if it is not there."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror or error}") from error
    if stat.S_ISREG(mode) or (or_folder and stat.S_ISDIR(mode)):
        return
    kind = next((kind for is_kind, kind in _KINDS if is_kind(mode)), "something else")
    raise ConfigError(f"{name}: this is {kind}; expected a file" + (" or a folder" if or_folder else ""))


def read_text(path: Path) -> str:
    """Read UTF-8 text; raises ConfigError with the file's name, FileNotFoundError if it is not there."""
    require_regular(path, path.name)
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path.name}: not UTF-8: {error}") from error
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"{path.name}: cannot be read: {error.strerror or error}") from error
