"""Which of OpenRouter's plugins exist here, and whether a request turns one on. Tables only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONTEXT_COMPRESSION = "context-compression"
RESPONSE_HEALING = "response-healing"
# Plugin -> the options it takes, with the values that are honoured.
PLUGINS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    CONTEXT_COMPRESSION: {"engine": ("middle-out",)},
    RESPONSE_HEALING: {},
}
MIDDLE_OUT = "middle-out"  # the legacy transform


def is_enabled(fields: Mapping[str, Any], plugin: str) -> bool:
    """Ask whether a request's gateway fields turn a plugin on; they were checked on their way in."""
    plugins = fields.get("plugins")
    if plugins and (listed := [entry for entry in plugins if entry.get("id") == plugin]):
        return all(entry.get("enabled") is not False for entry in listed)
    return plugin == CONTEXT_COMPRESSION and MIDDLE_OUT in (fields.get("transforms") or ())
