"""JSON and error responses, and how values become either. Content type: exactly application/json."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from aiohttp import web
from msgspec import Struct

from ionrouter.schema import json
from ionrouter.schema.errors import ErrorBody

ENDS_CONNECTION = (408, 413)
OWN_HEADERS = {"Server": "ionrouter", "X-Content-Type-Options": "nosniff"}  # of every response


def json_response(data: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=json.dumps(data),
        status=status,
        headers={**(headers or {}), "Content-Type": "application/json"},
    )


def error_response(body: ErrorBody, envelope: Mapping[str, Any] | None = None) -> web.Response:
    response = json_response(envelope or body.envelope(), status=body.status, headers=body.headers)
    if body.status in ENDS_CONNECTION:
        response.force_close()  # the rest of the request body is not worth reading
    return response


def header_text(text: str, max_length: int = 512) -> str:
    """Make a value that any HTTP stack takes: printable ASCII on one line."""
    if text.isascii() and text.isprintable():
        return text[:max_length].strip()
    clean = "".join(c if " " <= c <= "~" else "?" if c > "~" else " " for c in text)
    return clean[:max_length].strip()


def plain(value: Any) -> Any:
    """Make JSON of frozen values: structs, dataclasses, enums, sets, tuples."""
    if isinstance(value, Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(plain(item) for item in value)
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value
