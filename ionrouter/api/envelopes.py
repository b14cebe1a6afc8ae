"""Which envelope an error leaves in: each surface has its own for every error on its paths, 404s included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from aiohttp import web

from ionrouter.api.responses import error_response
from ionrouter.api.state import GENERATION_ID, METADATA, PATHS
from ionrouter.schema.errors import INTERNAL_ERROR, ErrorBody

Envelope = Callable[[ErrorBody, str | None], dict[str, Any]]
_PREFIXES = ("/api/v1", "/v1")
# First part of the path -> its envelope; OpenRouter's everywhere else.
_ENVELOPES: dict[str, Envelope] = {
    "messages": lambda body, generation_id: body.messages_envelope(generation_id),
    "responses": lambda body, _generation_id: body.responses_envelope(),
}


def refusal(request: web.Request, body: ErrorBody) -> web.Response:
    """Answer an error in the envelope of the path it was asked on."""
    body = in_callers_words(request, body)
    write = _ENVELOPES.get(_surface(request.path))
    envelope = body.envelope() if write is None else write(body, request.get(GENERATION_ID))
    if METADATA in request and body.status != INTERNAL_ERROR.status:  # what is masked stays masked
        envelope = {**envelope, "openrouter_metadata": request[METADATA]}
    return error_response(body, envelope)


def in_callers_words(request: web.Request, body: ErrorBody) -> ErrorBody:
    """Name places in a request as they are in what its caller sent."""
    paths = request.get(PATHS)
    if paths is None or body.status >= 500:
        return body
    param = None if body.param is None else paths.of(body.param)
    return replace(body, message=paths.in_text(body.message), param=param)


def _surface(path: str) -> str:
    """Name a path's first part below a prefix: /api/v1/messages/count_tokens -> "messages"."""
    for prefix in _PREFIXES:
        if path.startswith(prefix + "/"):
            return path.removeprefix(prefix + "/").partition("/")[0]
    return ""
