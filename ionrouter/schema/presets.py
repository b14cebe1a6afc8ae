"""Presets: named fields of a request from routes.yaml, merged under what the caller sends. Plain JSON, pure.

Asked for as the model `@preset/NAME`, as `MODEL@preset/NAME`, or as the field `preset`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ionrouter.errors import RequestError
from ionrouter.schema.tool_calls import function_name

MARK = "@preset/"
CACHE_ENABLED, CACHE_TTL = "cache_enabled", "cache_ttl_seconds"  # of the response cache
MAX_CACHE_TTL_S = 86_400
NO_PRESET: Mapping[str, Any] = {}


def with_preset(body: Any, presets: Mapping[str, Mapping[str, Any]]) -> Any:
    """Merge the preset that a body names under it; a body that names none stays as it is.

    Shallow: a field that the caller gives wins whole, null counts as not given, and `tools` are joined by
    name. Raises RequestError: 404 for an unknown preset, 400 where two are named.
    """
    if not isinstance(body, dict):
        return body
    model, named = _split(body.get("model"))
    slug = named if named is not None else body.get("preset")
    if slug is None:
        return body
    if not isinstance(slug, str):
        raise RequestError("preset: should be a string", param="preset")
    if named is not None and body.get("preset") not in (None, named):
        raise RequestError(
            f"preset '{body['preset']}' contradicts the model's '{MARK}{named}'", param="preset"
        )
    if slug not in presets:
        param = "preset" if named is None else "model"
        raise RequestError(f"no preset is called '{slug}'", status=404, error_type="not_found", param=param)
    return _merged(presets[slug], {**body, "model": model})


def preset_of(body: Any, presets: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """The preset that a body names, one that `with_preset` takes; nothing where it names none."""
    if not isinstance(body, dict):
        return NO_PRESET
    _, named = _split(body.get("model"))
    slug = named if named is not None else body.get("preset")
    return presets.get(slug, NO_PRESET) if isinstance(slug, str) else NO_PRESET


def cache_faults(preset: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with a preset's words about the response cache: field and message."""
    if not isinstance(preset.get(CACHE_ENABLED, False), bool):
        yield CACHE_ENABLED, "should be true or false"
    ttl_s = preset.get(CACHE_TTL, 1)
    if type(ttl_s) is not int or not 1 <= ttl_s <= MAX_CACHE_TTL_S:
        yield CACHE_TTL, f"should be a whole number of seconds from 1 to {MAX_CACHE_TTL_S}"


def _split(model: Any) -> tuple[Any, str | None]:
    """`a/b@preset/x` -> ("a/b", "x"); `@preset/x` -> (None, "x")."""
    if not isinstance(model, str) or MARK not in model:
        return model, None
    name, _, slug = model.partition(MARK)
    return name or None, slug


def _merged(preset: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in body.items() if value is not None and name != "preset"}
    merged = {**preset, **own}
    theirs, ours = preset.get("tools"), own.get("tools")
    if isinstance(theirs, list) and isinstance(ours, list):
        known = [_identity(tool) for tool in ours]
        merged["tools"] = [*(tool for tool in theirs if _identity(tool) not in known), *ours]
    return merged


def _identity(tool: Any) -> Any:
    """What makes two tools the same: the function's name; of tools that are no functions all of it."""
    name = function_name(tool)
    return tool if name is None else ("function", name)
