"""One request's trace while it runs. Knows the SDK through its door only; nothing here raises."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

import structlog

from ionrouter.errand import Errand
from ionrouter.schema.events import AttemptRecord, RequestRecord
from ionrouter.schema.request import InferenceRequest
from ionrouter.tracing import attributes
from ionrouter.tracing.attributes import Arrival, Attributes
from ionrouter.tracing.wishes import NONE, wishes_of

if TYPE_CHECKING:  # imports OpenTelemetry
    from ionrouter.tracing.sdk import Sdk, Span

log = structlog.get_logger(__name__)

FIRST_TOKEN = "ionrouter.first_token"  # event at the moment of an attempt's first usable token
NS = 1_000_000_000
Self_ = TypeVar("Self_")
P = ParamSpec("P")
Result = TypeVar("Result")


def harmless(
    method: Callable[Concatenate[Self_, P], Result],
) -> Callable[Concatenate[Self_, P], Result | None]:
    """Log what goes wrong instead of raising it."""

    @wraps(method)
    def guarded(self: Self_, *args: P.args, **kwargs: P.kwargs) -> Result | None:
        try:
            return method(self, *args, **kwargs)
        except Exception:
            log.exception("tracing_crashed")
            return None

    return cast(Callable[Concatenate[Self_, P], Result | None], guarded)


class RequestTrace:
    """One request's server span. It begins with the first thing that needs it: by then its body is read."""

    def __init__(self, sdk: Sdk, arrival: Arrival) -> None:
        self._sdk, self._arrival = sdk, arrival
        self._started_ns, self._started_at = time.time_ns(), time.monotonic()
        self._span: Span | None = None
        self._attempt_name: str | None = None
        self._record: RequestRecord | None = None
        self._told: Attributes = {}

    @harmless
    def attempt(self, errand: Errand) -> AttemptTrace | None:
        """Begin an attempt's span; None where the sampler left the trace out and nobody needs its header."""
        parent = self._begun(errand.request)
        is_forwarded = errand.endpoint.provider.forward_trace
        if not parent.is_recording:
            return AttemptTrace(None, parent.traceparent, 0) if is_forwarded else None
        said, now_ns = attributes.of_attempt(errand), time.time_ns()
        name = self._attempt_name or f"{said['gen_ai.operation.name']} {said['gen_ai.request.model']}"
        span = self._sdk.call(name, said, now_ns, parent)
        return AttemptTrace(span, span.traceparent if is_forwarded else None, now_ns)

    @harmless
    def report(self, record: RequestRecord, request: InferenceRequest, strategy: str) -> None:
        if self._begun(request).is_recording:
            self._record, self._told = record, attributes.of_report(record, strategy)

    @harmless
    def end(self, status: int | None, request_id: str | None) -> None:
        """End it. `status`: of the HTTP answer, None when the client did not wait for one."""
        span = self._begun(None)
        if not span.is_recording:
            return
        said = self._told or ({"ionrouter.request.id": request_id} if request_id else {})
        if status is not None:
            said["http.response.status_code"] = status
        error = attributes.error_of(self._record, status)
        if error is not None:
            said["error.type"] = error
        is_error = error is not None and error != "client_left"
        took_ns = int((time.monotonic() - self._started_at) * NS)
        span.end(said, self._started_ns + took_ns, is_error=is_error)

    def _begun(self, request: InferenceRequest | None) -> Span:
        if self._span is None:
            wishes = wishes_of(request.gateway_fields.get("trace")) if request is not None else NONE
            arrival = self._arrival
            said = attributes.of_arrival(arrival)
            if request is not None:
                said |= {**attributes.of_caller(request), **wishes.metadata}
            name = wishes.request_name or f"{arrival.method} {arrival.route}"
            self._attempt_name = wishes.attempt_name
            self._span = self._sdk.serve(name, said, self._started_ns, arrival.headers, wishes)
        return self._span


class AttemptTrace:
    """One attempt's client span."""

    __slots__ = ("_span", "_started_ns", "traceparent")

    def __init__(self, span: Span | None, traceparent: str | None, started_ns: int) -> None:
        self._span, self._started_ns, self.traceparent = span, started_ns, traceparent

    @harmless
    def end(self, record: AttemptRecord) -> None:
        if self._span is None:
            return
        if record.ttft_s is not None:
            self._span.event(FIRST_TOKEN, self._started_ns + int(record.ttft_s * NS))
        ended_ns = self._started_ns + int(record.duration_s * NS)
        said = attributes.of_attempt_end(record)
        self._span.end(said, ended_ns, is_error=attributes.is_error(record))
