"""The error envelope: OpenRouter's integer code and metadata, with OpenAI's type and param beside them.

Knows our exceptions and JSON; which HTTP response carries the envelope is the edge's business.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ionrouter.errors import AllAttemptsFailed, AvailabilityError, RequestError, StreamBroken, UpstreamError

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


def error_body(error: BaseException) -> ErrorBody:
    """Translate any exception; what is not one of ours becomes a masked 500."""
    match error:
        case RequestError():
            return _request(error)
        case AllAttemptsFailed():
            return _all_attempts(error)
        case StreamBroken():
            return _upstream(error.cause)
        case UpstreamError():
            return _upstream(error)
    return INTERNAL_ERROR


def _request(error: RequestError) -> ErrorBody:
    availability = error.availability if isinstance(error, AvailabilityError) else {}
    return ErrorBody(
        error.status,
        error.message,
        error.param,
        {"error_type": error.error_type, **error.metadata},
        availability,
        error.headers,
    )


def _all_attempts(error: AllAttemptsFailed) -> ErrorBody:
    headers = {"Retry-After": str(retry_after_seconds(error.retry_after_s))} if error.retry_after_s else {}
    metadata: dict[str, Any] = {"error_type": error.error_type}
    if error.errors:
        last = error.errors[-1][1]
        metadata |= _provider_metadata(last)
        metadata["previous_errors"] = [_previous(endpoint, failure) for endpoint, failure in error.errors]
    return ErrorBody(error.status, error.message, error.param, metadata, headers=headers)


def _previous(endpoint_id: str, failure: UpstreamError) -> dict[str, Any]:
    return {
        "provider": failure.provider or endpoint_id,
        "endpoint": endpoint_id,
        "code": failure.status,
        "status": failure.failure.value,
        "message": failure.message,
    }


def _provider_metadata(failure: UpstreamError) -> dict[str, Any]:
    found = {
        "provider_name": failure.provider or None,
        "provider_code": failure.code,
        "raw": failure.raw,
    }
    return {name: value for name, value in found.items() if value is not None}


# What an endpoint's failure after commit means to the client; its own status would blame the client's key.
_BROKEN_STATUS = {401: 502, 402: 502, 403: 502, 404: 502}


def _upstream(failure: UpstreamError) -> ErrorBody:
    status = failure.status if failure.status is not None and failure.status >= 400 else 502
    status = _BROKEN_STATUS.get(status, status)
    metadata = {"error_type": failure.error_type or error_type(status), **_provider_metadata(failure)}
    return ErrorBody(status, failure.message, failure.param, metadata)


def retry_after_seconds(seconds: float) -> int:
    """Round up: coming back early would meet the same refusal."""
    return max(1, math.ceil(seconds))
