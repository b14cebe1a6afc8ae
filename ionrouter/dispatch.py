"""Go there, and on to the next candidate on failure: the second of the two middle pages.

Before commit any fault moves on as its class says; after commit there is no silent switch. Each endpoint at
most once, all inside one deadline. How one attempt runs is attempt.py's business.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing

from ionrouter.attempt import Attempt
from ionrouter.balancing.circuit_breaker import Permit
from ionrouter.balancing.fields import fit, options_for
from ionrouter.balancing.outlook import streams_upstream
from ionrouter.balancing.plan import Candidate, Plan
from ionrouter.balancing.reasoning import in_words_of
from ionrouter.balancing.verdict import all_failed, nobody_left
from ionrouter.balancing.walk import Walk
from ionrouter.errand import Errand, Parts, Trace
from ionrouter.errors import FailureClass, StreamBroken, UpstreamError
from ionrouter.providers.base import ProviderClient, UpstreamRequest
from ionrouter.routing.table import ProviderType, RoutingSettings
from ionrouter.schema.events import Event, ProviderEvent
from ionrouter.schema.request import InferenceRequest

PRIORITIES = {"priority": 1, "fast": 1, "ultrafast": 1, "flex": -1}  # service tier -> place in Ion's queue
Clients = Mapping[ProviderType, ProviderClient]


async def dispatch(
    plan: Plan,
    request: InferenceRequest,
    clients: Clients,
    settings: RoutingSettings,
    parts: Parts,
    trace: Trace,
) -> AsyncIterator[Event]:
    """Yield Committed, then Chunks or one Complete, then Finished.

    Raises RequestError or AllAttemptsFailed before commit, StreamBroken after. `trace` holds every attempt,
    also when the caller closes the iterator early.
    """
    walk = Walk.over(plan.candidates, settings.max_attempts)
    while (candidate := walk.take()) is not None:
        errand = _errand(candidate, plan, request, clients, settings, walk)
        permit = _claim(candidate, parts)
        if permit is None:
            continue  # somebody else holds the half-open trial
        walk.num_attempts += 1
        attempt = Attempt(errand, permit, parts, trace)
        try:
            async with aclosing(attempt.events()) as events:  # type: ignore[type-var]
                async for event in events:
                    yield event
            return
        except UpstreamError as error:
            if attempt.is_committed:
                raise StreamBroken(error) from error
            walk.fail(candidate, error)
        if parts.clock() >= _deadline(candidate, request, settings):
            break
    raise all_failed(walk.errors) if walk.errors else nobody_left(plan, request, parts.clock())


def _claim(candidate: Candidate, parts: Parts) -> Permit | None:
    """Claim the breaker's leave; the last resort needs none."""
    permit = parts.book.of(candidate.endpoint).breaker.try_acquire(parts.clock())
    return Permit(is_trial=False) if permit is None and candidate.is_forced else permit


def _deadline(candidate: Candidate, request: InferenceRequest, settings: RoutingSettings) -> float:
    return request.arrived_at + min(settings.total_timeout_s, candidate.endpoint.timeouts.total_s)


def _errand(
    candidate: Candidate,
    plan: Plan,
    request: InferenceRequest,
    clients: Clients,
    settings: RoutingSettings,
    walk: Walk,
) -> Errand:
    """Prepare one attempt: a body of its own for this endpoint, its deadline, and why it is here."""
    endpoint = candidate.endpoint
    fitted = fit(request, endpoint)
    tier = {"service_tier": endpoint.service_tier} if endpoint.service_tier else {}
    upstream = UpstreamRequest(
        request_id=request.id,
        kind=request.kind,
        endpoint=endpoint,
        body={**in_words_of(endpoint, fitted.body), **tier},
        stream=streams_upstream(endpoint, request),
        priority=PRIORITIES.get(request.service_tier or "", 0),
        options=options_for(request, endpoint),
        tenant=request.key_id or "",
    )
    return Errand(
        request=request,
        upstream=upstream,
        candidate=candidate,
        client=clients.get(endpoint.provider.type) or _Absent(endpoint.provider.type),
        number=walk.num_attempts + 1,
        reason=_reason(candidate, plan, walk),
        dropped=fitted.dropped,
        deadline=_deadline(candidate, request, settings),
        may_switch_model=walk.has_other_model(candidate),
    )


def _reason(candidate: Candidate, plan: Plan, walk: Walk) -> str:
    """One line for a response header: the score and the draw, or whom this one stands in for."""
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
