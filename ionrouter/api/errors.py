"""Exceptions to error envelopes: the one place where the edge decides what a client is told of a failure."""

from __future__ import annotations

from typing import Any

from ionrouter.api.responses import header_text
from ionrouter.balancing.verdict import client_error_type, client_status
from ionrouter.errors import AllAttemptsFailed, AvailabilityError, RequestError, StreamBroken, UpstreamError
from ionrouter.schema.errors import INTERNAL_ERROR, ErrorBody, retry_after_seconds

ROUTE = "X-Ionrouter-Route"
NOWHERE = "none; no endpoint may serve this request"


def error_body(error: BaseException) -> ErrorBody:
    """Translate any exception; what is not one of ours becomes a masked 500."""
    match error:
        case RequestError():
            return _request(error)
        case AllAttemptsFailed():
            return _all_attempts(error)
        case StreamBroken():
            return _upstream(error.cause)
    return INTERNAL_ERROR


def _request(error: RequestError) -> ErrorBody:
    availability = error.availability if isinstance(error, AvailabilityError) else {}
    metadata = {"error_type": error.error_type, **error.metadata}
    headers = {**error.headers, ROUTE: NOWHERE} if availability else error.headers
    return ErrorBody(error.status, error.message, error.param, metadata, availability, headers)


def _all_attempts(error: AllAttemptsFailed) -> ErrorBody:
    tried = ", ".join(f"{endpoint}: {_short(failure)}" for endpoint, failure in error.errors)
    headers = {ROUTE: header_text(f"none; tried {tried}")} if tried else {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(retry_after_seconds(error.retry_after_s))
    metadata: dict[str, Any] = {"error_type": error.error_type}
    if error.errors:
        metadata |= _provider_metadata(error.errors[-1][1])
        metadata["previous_errors"] = [_previous(endpoint, failure) for endpoint, failure in error.errors]
    return ErrorBody(error.status, error.message, error.param, metadata, headers=headers)


def _short(failure: UpstreamError) -> str:
    return str(failure.status or failure.code or failure.failure.value)


def _upstream(failure: UpstreamError) -> ErrorBody:
    metadata = {"error_type": client_error_type(failure), **_provider_metadata(failure)}
    return ErrorBody(client_status(failure), failure.message, failure.param, metadata)


def _previous(endpoint_id: str, failure: UpstreamError) -> dict[str, Any]:
    return {
        "provider": failure.provider or endpoint_id,
        "endpoint": endpoint_id,
        "code": failure.status,
        "status": failure.failure.value,
        "message": failure.message,
    }


def _provider_metadata(failure: UpstreamError) -> dict[str, Any]:
    found = {"provider_name": failure.provider or None, "provider_code": failure.code, "raw": failure.raw}
    return {name: value for name, value in found.items() if value is not None}
