"""The error envelope: OpenRouter's integer code and metadata, with OpenAI's type and param beside them.

Knows the envelope's words; which exception becomes which error is ionrouter/api/errors.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ionrouter.schema.context_length import in_anthropics_words

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

# Anthropic's `error.type`, by error_type; what is about the request itself is invalid_request_error.
MESSAGES_TYPES = {
    "authentication": "authentication_error",
    "permission_denied": "permission_error",
    "payment_required": "billing_error",
    "not_found": "not_found_error",
    "image_not_found": "not_found_error",
    "payload_too_large": "request_too_large",
    "rate_limit_exceeded": "rate_limit_error",
    "provider_overloaded": "overloaded_error",
    "timeout": "timeout_error",
    "server": "api_error",
    "unmapped": "api_error",
    "provider_unavailable": "api_error",
}
# The Responses surface's `response.error.code`, by error_type; everything else is server_error.
RESPONSES_CODES = {
    "rate_limit_exceeded": "rate_limit_exceeded",
    "context_length_exceeded": "invalid_prompt",
    "invalid_request": "invalid_prompt",
    "content_policy_violation": "image_content_policy_violation",
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

    @property
    def error_type(self) -> str:
        """OpenRouter's word for it."""
        return str(self.metadata.get("error_type") or error_type(self.status))

    def messages_envelope(self, request_id: str | None) -> dict[str, Any]:
        """Anthropic's envelope; what else is known stands beside its own three keys."""
        is_long = self.error_type == "context_length_exceeded"
        error: dict[str, Any] = {
            "type": messages_type(self.status, self.error_type),
            "message": in_anthropics_words(self.message) if is_long else self.message,
            "error_type": self.error_type,
        }
        if self.availability:
            error["availability"] = dict(self.availability)
        told = {name: value for name, value in self.metadata.items() if name != "error_type"}
        more = {"metadata": told} if told else {}
        return {"type": "error", "error": error, "request_id": request_id, **more}

    def responses_envelope(self) -> dict[str, Any]:
        """The envelope with the error's type at its top level too."""
        return {**self.envelope(), "error_type": self.error_type}

    def responses_error(self) -> dict[str, Any]:
        """The `error` of a response that failed after it had begun."""
        return {"code": RESPONSES_CODES.get(self.error_type, "server_error"), "message": self.message}


def openai_type(status: int) -> str:
    return OPENAI_TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")


def error_type(status: int) -> str:
    return ERROR_TYPES.get(status) or ("invalid_request" if status < 500 else "server")


def messages_type(status: int, error_type: str) -> str:
    return MESSAGES_TYPES.get(error_type) or ("invalid_request_error" if status < 500 else "api_error")


def plain_error(status: int, message: str, *, headers: Mapping[str, str] | None = None) -> ErrorBody:
    """An error that is only a status and a sentence."""
    return ErrorBody(status, message, metadata={"error_type": error_type(status)}, headers=headers or {})


INTERNAL_ERROR = plain_error(500, "internal error")  # masked: what went wrong is in the log


def retry_after_seconds(seconds: float) -> int:
    """Round up: coming back early would meet the same refusal."""
    return max(1, math.ceil(seconds))
