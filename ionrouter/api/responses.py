"""JSON and error responses. The content type is exactly application/json, for errors too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from ionrouter.schema import json
from ionrouter.schema.errors import ErrorBody


def json_response(data: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=json.dumps(data),
        status=status,
        headers={**(headers or {}), "Content-Type": "application/json"},
    )


def error_response(body: ErrorBody) -> web.Response:
    return json_response(body.envelope(), status=body.status, headers=body.headers)


def header_text(text: str, max_length: int = 512) -> str:
    """Make a value that any HTTP stack takes: printable ASCII on one line."""
    clean = "".join(c if " " <= c <= "~" else "?" if c > "~" else " " for c in text)
    return clean[:max_length].strip()
