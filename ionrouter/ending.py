"""How a request ended, and the record that is made of it, whoever answered."""

from __future__ import annotations

import asyncio

from ionrouter.balancing.verdict import client_status
from ionrouter.errand import Trace, stop_in
from ionrouter.errors import AllAttemptsFailed, RequestError, StreamBroken
from ionrouter.schema.events import RequestRecord, Source
from ionrouter.schema.request import InferenceRequest


class Ending:
    """How a request ended. `source`: of the kept answer that it was given."""

    __slots__ = ("error", "is_reported", "source", "status")

    def __init__(self, source: Source | None = None) -> None:
        self.source = source
        self.status = 500
        self.error: str | None = None
        self.is_reported = False


def why(ended: asyncio.CancelledError | GeneratorExit) -> tuple[int, str]:
    """Tell status and words of a request that was ended from outside: of the error that ended it, if any."""
    cause = stop_in(ended)
    return (499, "the client left") if cause is None else (cause.status, str(cause))


def status_of(error: Exception) -> int:
    """Tell what status its client saw, or would have seen."""
    if isinstance(error, RequestError | AllAttemptsFailed):
        return error.status
    return client_status(error.cause) if isinstance(error, StreamBroken) else 500


def record_of(
    request: InferenceRequest, trace: Trace, started_at: float, duration_s: float, ending: Ending
) -> RequestRecord:
    """Make the record. No endpoint served what a kept answer did: none was asked."""
    served = trace.committed
    asked = served if ending.source is None else None
    return RequestRecord(
        id=request.id,
        kind=request.kind,
        requested_model=request.model,
        stream=request.stream,
        started_at=started_at,
        duration_s=duration_s,
        status=ending.status,
        attempts=tuple(trace.attempts),
        served_model=served.model_id if served else None,
        served_endpoint=asked.endpoint_id if asked else None,
        served_provider=asked.provider_name if asked else None,
        is_cancelled=ending.status == 499,
        ttft_s=trace.ttft_s,
        usage=trace.usage,
        cost=trace.cost(),
        is_usage_estimated=trace.is_usage_estimated
        or (served is None and any(attempt.is_usage_estimated for attempt in trace.attempts)),
        key_id=request.key_id,
        session_id=request.session_id,
        error=ending.error,
        route=served.reason if served else None,
        source=ending.source,
    )
