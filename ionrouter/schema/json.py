"""JSON on the wire: fast where it can be, lenient where upstreams are broken, strict in what leaves.

orjson refuses lone surrogates and non-finite numbers on input; real upstreams send both. The fallback
reads them, and what leaves is always strict JSON: non-finite numbers become null.
"""

from __future__ import annotations

import json
import math
from typing import Any

import orjson

# How deep a value may be nested that is to be written again, in an envelope: orjson writes 254 levels and
# reads 1024, Python's own encoder ends with the stack.
MAX_LEVELS = 200


def loads(data: bytes | bytearray | memoryview | str) -> Any:
    """Parse JSON; raises ValueError on anything that is not JSON (after a lenient second try)."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        text = data if isinstance(data, str) else bytes(data).decode("utf-8", "strict")
        return json.loads(text)


def loads_exactly(text: str) -> Any:
    """Parse JSON with all digits of its integers: beyond 64 bits `loads` makes floats of them."""
    return json.loads(text)


def dumps(value: Any) -> bytes:
    """Serialise to strict UTF-8 JSON; a lone surrogate stays an escape, NaN and Infinity become null."""
    try:
        return orjson.dumps(value)
    except (TypeError, orjson.JSONEncodeError):
        return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False).encode("ascii")


def finite(value: Any) -> Any:
    """Give what would be read of `dumps(value)`; None for what is nested beyond reason."""
    try:
        return orjson.loads(orjson.dumps(value))
    except (TypeError, ValueError):  # half a surrogate pair, or too deep
        return loads(dumps(value)) if is_shallow(value) else None


def is_shallow(value: Any, levels: int = MAX_LEVELS) -> bool:
    """Ask whether parsed JSON is nested so little that it can be written wherever it stands."""
    if value.__class__ is dict:
        value = value.values()
    elif value.__class__ is not list:
        return True
    if levels == 0:
        return False
    for item in value:  # asked of every detail of a thought; a generator costs twice
        if (item.__class__ is dict or item.__class__ is list) and not is_shallow(item, levels - 1):
            return False
    return True


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value
