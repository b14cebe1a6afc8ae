"""The small JSON files of a folder in Hugging Face form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ionrouter.errors import ConfigError


def read_file(path: Path, *, required: bool = False) -> dict[str, Any]:
    """Parse one file of a folder, {} if it is not there; raises ConfigError naming it."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if required:
            raise ConfigError(f"{path}: missing; the folder needs a fast tokenizer") from None
        return {}
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected an object")
    return value
