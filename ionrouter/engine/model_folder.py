"""The small JSON files of a folder in Hugging Face form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ionrouter.engine.regular_file import read_text
from ionrouter.errors import ConfigError


def read_file(path: Path, *, required: bool = False) -> dict[str, Any]:
    """Parse one file of a folder, {} if it is not there; raises ConfigError naming it."""
    try:
        value = json.loads(read_text(path))
    except FileNotFoundError:
        if required:
            raise ConfigError(f"{path.name}: missing; {_wanted(path.parent)}") from None
        return {}
    except ValueError as error:
        raise ConfigError(f"{path.name}: not JSON: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path.name}: not JSON that can be read: nested too deep") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path.name}: expected an object")
    return value


def _wanted(folder: Path) -> str:
    if found := sorted(path.name for path in folder.glob("*.gguf")):
        return f"of a folder with GGUF files name one: {', '.join(found)}"
    return "a folder needs a fast tokenizer, and a GGUF file is named itself"


def typed(values: Mapping[str, Any], key: str, kind: type, words: str, file: str = "") -> Any:
    """Look a value up, None if it is absent or null; raises ConfigError naming its key if it is none."""
    value = values.get(key)
    if value is None or isinstance(value, kind):
        return value
    raise ConfigError(f"{file}: {key}: not {words}" if file else f"{key}: not {words}")
