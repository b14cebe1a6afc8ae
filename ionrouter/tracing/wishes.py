"""What a caller wants of its trace: the request's `trace` object, in OpenRouter's words. Pure.

Known keys: `trace_id` and `parent_span_id` (where the spans belong), `trace_name`, `span_name`,
`generation_name` (what they are called). All other keys are metadata.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ionrouter.schema import json

MAX_KEYS = 32
MAX_CHARS = 256  # of a name, a key, a value
Value = str | bool | int | float
_NAMES = ("trace_name", "span_name", "generation_name", "parent_span_id")
_TRACE_ID = re.compile(r"[0-9a-f]{32}")
_SPAN_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Wishes:
    """Ids as numbers, None where the caller names none. `span_id` needs a `trace_id` to mean anything."""

    trace_id: int | None = None
    span_id: int | None = None
    request_name: str | None = None
    attempt_name: str | None = None
    metadata: Mapping[str, Value] = field(default_factory=dict)  # attribute -> value


NONE = Wishes()


def wishes_of(trace: Any) -> Wishes:
    """Read a request's `trace`; what cannot be understood is left out, never refused."""
    if not isinstance(trace, Mapping) or not trace:
        return NONE
    trace_id = _trace_id(trace.get("trace_id"))
    more = {key: value for key, value in trace.items() if key not in _NAMES and value is not None}
    return Wishes(
        trace_id=trace_id,
        span_id=_number(_SPAN_ID, trace.get("parent_span_id")) if trace_id is not None else None,
        request_name=_text(trace.get("span_name")) or _text(trace.get("trace_name")),
        attempt_name=_text(trace.get("generation_name")),
        metadata={
            f"trace.metadata.{key[:MAX_CHARS]}": _value(more[key]) for key in [*more][:MAX_KEYS] if key
        },
    )


def _trace_id(value: Any) -> int | None:
    """32 hexadecimal digits (or a UUID) as they are; any other text by its SHA-256, the same every time."""
    if not isinstance(value, str) or not value:
        return None
    digest = hashlib.sha256(value.encode("utf-8", "replace")).digest()
    return _number(_TRACE_ID, value.replace("-", "")) or int.from_bytes(digest[:16])


def _number(form: re.Pattern[str], value: Any) -> int | None:
    """Hexadecimal digits as a number; zeros are no id."""
    if not isinstance(value, str) or form.fullmatch(value.lower()) is None:
        return None
    return int(value, 16) or None


def _text(value: Any) -> str | None:
    return value[:MAX_CHARS] if isinstance(value, str) and value else None


def _value(value: Any) -> Value:
    if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    return (value if isinstance(value, str) else json.dumps(value).decode("utf-8", "replace"))[:MAX_CHARS]
