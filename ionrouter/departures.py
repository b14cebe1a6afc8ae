"""Attempts in the order of a plan's walk: each with its body, deadline, reason and the breaker's leave.

Starts none of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from ionrouter.attempt import Attempt
from ionrouter.balancing.circuit_breaker import Permit
from ionrouter.balancing.fields import fit
from ionrouter.balancing.options import options_for
from ionrouter.balancing.outlook import streams_upstream
from ionrouter.balancing.plan import Candidate, Plan
from ionrouter.balancing.reasoning import in_words_of
from ionrouter.balancing.verdict import client_error_type, client_status
from ionrouter.balancing.walk import Walk
from ionrouter.errand import Errand, Parts, Trace
from ionrouter.errors import FailureClass, RequestError, UpstreamError
from ionrouter.providers.base import ProviderClient, UpstreamRequest
from ionrouter.routing.table import Endpoint, ProviderType, RoutingSettings
from ionrouter.schema.events import ProviderEvent, SentBody, Taker
from ionrouter.schema.request import InferenceRequest

PRIORITIES = {"priority": 1, "fast": 1, "ultrafast": 1, "flex": -1}  # service tier -> place in Ion's queue
Clients = Mapping[ProviderType, ProviderClient]


class Departure(Struct, frozen=True):
    """An attempt about to start, and the candidate that it tries."""

    candidate: Candidate
    attempt: Attempt


@dataclass(slots=True)
class Departures:
    """One request's attempts, first to last."""

    plan: Plan
    request: InferenceRequest
    clients: Clients
    settings: RoutingSettings
    parts: Parts
    trace: Trace
    taker: Taker | None = None
    walk: Walk = field(init=False)
    has_hedged: bool = False  # a rival was sent

    def __post_init__(self) -> None:
        self.walk = Walk.over(self.plan.candidates, self.settings.max_attempts)

    def next(self) -> Departure | None:
        """Prepare the next attempt; None: the walk is over.

        Passed by: trials that somebody else holds, and endpoints whose total time others have used up.
        """
        while (candidate := self.walk.take()) is not None:
            if self._is_too_late_for(candidate):
                continue
            if (departure := self._depart(candidate)) is not None:
                return departure
        return None

    def _is_too_late_for(self, candidate: Candidate) -> bool:
        if self.walk.num_attempts == 0:
            return False  # nobody has used any of it
        return self.parts.clock() >= deadline_of(candidate.endpoint, self.request, self.settings)

    def rival_of(self, slow: Candidate, waited_s: float) -> Departure | None:
        """Prepare an attempt beside a slow one: the next candidate of its tier, so never another model's."""
        while (candidate := self.walk.take_beside(slow)) is not None:
            reason = f"hedge: {slow.endpoint.id} had not answered after {waited_s:.3g} s"
            if (departure := self._depart(candidate, reason)) is not None:
                return departure
        return None

    def _depart(self, candidate: Candidate, hedge: str | None = None) -> Departure | None:
        permit = _claim(candidate, self.parts)
        if permit is None:
            return None
        errand = self._errand(candidate, hedge)
        self.walk.num_attempts += 1
        attempt = Attempt(errand, permit, self.parts, self.trace)
        return Departure(candidate, attempt)

    def _errand(self, candidate: Candidate, hedge: str | None) -> Errand:
        upstream = upstream_request(self.request, candidate.endpoint)
        asked = (
            self._shown(upstream.request, candidate) if self.request.overrides.echoes else upstream.request
        )
        return Errand(
            request=self.request,
            upstream=asked,
            endpoint=candidate.endpoint,
            route=candidate.route,
            client=client_for(candidate.endpoint, self.clients),
            number=self.walk.num_attempts + 1,
            reason=hedge or _reason(candidate, self.plan, self.walk),
            dropped=upstream.dropped,
            deadline=deadline_of(candidate.endpoint, self.request, self.settings),
            may_switch_model=self.walk.has_other_model(candidate),
            is_exploring=candidate.is_exploring,
            role="hedge" if hedge else "main",
            taker=self.taker,
        )

    def _shown(self, upstream: UpstreamRequest, candidate: Candidate) -> UpstreamRequest:
        """Note what it sends, for the caller to see."""
        sent = SentBody(candidate.route.id, candidate.endpoint.provider.name)
        self.trace.sent = [*(self.trace.sent or ()), sent]
        return replace(upstream, sent=sent)


class Prepared(Struct, frozen=True):
    """What one endpoint is asked, and which fields it does not get."""

    request: UpstreamRequest
    dropped: tuple[str, ...]


def upstream_request(request: InferenceRequest, endpoint: Endpoint) -> Prepared:
    """Make a body of its own for this endpoint."""
    fitted, options = fit(request, endpoint), options_for(request, endpoint)
    body = in_words_of(endpoint, fitted.body)
    if endpoint.service_tier:
        body = {**body, "service_tier": endpoint.service_tier}
    upstream = UpstreamRequest(
        request_id=request.id,
        kind=request.kind,
        endpoint=endpoint,
        body=body,
        stream=streams_upstream(endpoint, request),
        priority=PRIORITIES.get(request.service_tier or "", 0),
        options=options.given,
        tenant=request.key_id or "",
    )
    return Prepared(upstream, (*fitted.dropped, *options.dropped))


def deadline_of(endpoint: Endpoint, request: InferenceRequest, settings: RoutingSettings) -> float:
    """The moment at which the request is over, if this endpoint serves it."""
    own_s, most_s = endpoint.timeouts.total_s, settings.total_timeout_s
    return request.arrived_at + (own_s if own_s < most_s else most_s)


def client_for(endpoint: Endpoint, clients: Clients) -> ProviderClient:
    """Find the endpoint's client."""
    return clients.get(endpoint.provider.type) or _Absent(endpoint.provider.type)


def _claim(candidate: Candidate, parts: Parts) -> Permit | None:
    """Claim the breaker's leave; the last resort needs none."""
    permit = parts.book.of(candidate.endpoint).breaker.try_acquire(parts.clock())
    return Permit(is_trial=False) if permit is None and candidate.is_forced else permit


def _reason(candidate: Candidate, plan: Plan, walk: Walk) -> str:
    """One line for a response header: the score and the draw, or whom this one stands in for."""
    down = candidate.steps_down_from
    note = f"; {candidate.endpoint.quantization} instead of {down}" if down else ""
    return _why(candidate, plan, walk) + note


def _why(candidate: Candidate, plan: Plan, walk: Walk) -> str:
    if walk.errors:
        failed, error = walk.errors[-1]
        return f"fallback after {failed}: {error.status or error.code or error.failure.value}"
    picked = f"first pick of {len(plan.candidates)} ({plan.reason})"
    return f"{plan.strategy}: score {candidate.score.total:.3g}, {picked}"


class _Absent:
    """Stands where this process has no client for a provider type: the endpoint cannot work here."""

    def __init__(self, provider_type: str) -> None:
        self._type = provider_type

    async def stream(self, request: UpstreamRequest) -> AsyncIterator[ProviderEvent]:
        raise UpstreamError(FailureClass.DOMAIN, f"no client for provider type {self._type}")
        yield  # an iterator that never yields

    async def close(self) -> None:
        return None


async def counted(request: InferenceRequest, endpoint: Endpoint, clients: Clients) -> int | None:
    """Count a request's prompt at an endpoint; None where that would take an answer. Raises RequestError."""
    count: Callable[[UpstreamRequest], Awaitable[int | None]] | None
    count = getattr(client_for(endpoint, clients), "count", None)  # see CountingClient
    if count is None:
        return None
    try:
        tokens: int | None = await count(upstream_request(request, endpoint).request)
    except UpstreamError as error:
        raise RequestError(
            error.message,
            status=client_status(error),
            error_type=client_error_type(error),
            param=error.param,
        ) from error
    return tokens
