"""The error envelope: OpenRouter's integer code and metadata, with OpenAI's type and param beside them.

Knows the envelope's words; which exception becomes which error is ionrouter/api/errors.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# OpenAI's `error.type`, by status.
OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
# OpenRouter's `error.metadata.error_type`, by status.
ERROR_TYPES = {
    400: "invalid_request",
    401: "authentication",
    402: "payment_required",
    403: "permission_denied",
    404: "not_found",
    408: "timeout",
    412: "precondition_failed",
    413: "payload_too_large",
    422: "unprocessable",
    429: "rate_limit_exceeded",
    500: "server",
    502: "provider_unavailable",
    503: "provider_overloaded",
    504: "timeout",
    529: "provider_overloaded",
}


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """One error on its way out: status, the `error` object, extra response headers."""

    status: int
    message: str
    param: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    availability: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def error(self) -> dict[str, Any]:
        """The `error` object; `code` is the HTTP status, an integer."""
        error: dict[str, Any] = {
            "code": self.status,
            "message": self.message,
            "type": openai_type(self.status),
            "param": self.param,
        }
        if self.metadata:
            error["metadata"] = dict(self.metadata)
        if self.availability:
            error["availability"] = dict(self.availability)
        return error

    def envelope(self) -> dict[str, Any]:
        return {"error": self.error()}


def openai_type(status: int) -> str:
    return OPENAI_TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")


def error_type(status: int) -> str:
    return ERROR_TYPES.get(status) or ("invalid_request" if status < 500 else "server")


def plain_error(status: int, message: str, *, headers: Mapping[str, str] | None = None) -> ErrorBody:
    """An error that is only a status and a sentence."""
    return ErrorBody(status, message, metadata={"error_type": error_type(status)}, headers=headers or {})


INTERNAL_ERROR = plain_error(500, "internal error")  # masked: what went wrong is in the log


def retry_after_seconds(seconds: float) -> int:
    """Round up: coming back early would meet the same refusal."""
    return max(1, math.ceil(seconds))
