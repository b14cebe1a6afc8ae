"""The router's inner state for operators: breakers, retries, hedges, shadows. Reads; changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from ionrouter.balancing.circuit_breaker import BreakerState
from ionrouter.balancing.health import Health
from ionrouter.request_metrics import MAX_ENDPOINTS
from ionrouter.router import Router
from ionrouter.routing.table import Endpoint
from ionrouter.routing_metrics import Reading

_LEVELS = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}
MAX_TOLD = 100  # breakers listed in /health
STATUS_UNAVAILABLE = -5  # as an open breaker: nobody is sent there


def endpoint_status(router: Router, endpoint: Endpoint) -> int:
    """OpenRouter's `status`: 0 operational, then worse and worse."""
    if unavailable(router, endpoint) is not None:
        return STATUS_UNAVAILABLE
    now = time.monotonic()
    health = router.book.of(endpoint)
    state = health.breaker.state(now)
    if state is BreakerState.OPEN:
        return -5
    if state is BreakerState.HALF_OPEN:
        return -3
    return -2 if health.has_outage(now) else 0


def unavailable(router: Router, endpoint: Endpoint, *, whole: bool = False) -> str | None:
    """Say why the engine inside cannot answer for an endpoint now: it loads, failed to, or hangs.

    `whole`: with the places of files on disk, which are for the server's owner.
    """
    load = router.engine_load(endpoint) if endpoint.disabled is None else None
    if load is None or load.ready:
        return None
    return load.whole_reason if whole else load.reason


def open_breakers(router: Router) -> list[Mapping[str, Any]]:
    """Endpoints whose breaker is not closed, for how long, and why."""
    now, told = time.monotonic(), list[Mapping[str, Any]]()
    for endpoint_id, health in _healths(router):
        breaker = health.breaker
        state = breaker.state(now)
        if state is BreakerState.CLOSED or len(told) >= MAX_TOLD:
            continue
        told.append(
            {
                "endpoint": endpoint_id,
                "state": state.value,
                "opens_for_s": round(max(breaker.until - now, 0.0), 1),
                "num_openings": breaker.num_openings,
                "cause": breaker.cause,
            }
        )
    return told


def readings(router: Router) -> Iterator[Reading]:
    """Everything that `routing_metrics` has families for."""
    now = time.monotonic()
    for endpoint_id, health in _healths(router):
        yield Reading("ionrouter_breaker_state", (endpoint_id,), _LEVELS[health.breaker.state(now)])
        counts = (("made", health.budget.num_taken), ("refused", health.budget.num_refused))
        for outcome, count in counts if any(count for _, count in counts) else ():
            yield Reading("ionrouter_connection_retries", (endpoint_id, outcome), count)
    for model, (num_started, num_refused) in router.hedge_counts().items():
        yield Reading("ionrouter_hedges", (model, "started"), num_started)
        yield Reading("ionrouter_hedges", (model, "refused"), num_refused)
    for outcome, counter in (("started", router.shadows.started), ("skipped", router.shadows.skipped)):
        for name, count in counter.items():
            yield Reading("ionrouter_shadows", (name, outcome), count)


def _healths(router: Router) -> Iterator[tuple[str, Health]]:
    """Endpoints that may be used, each id once: those of the file, then those that patterns made.

    Of the latter those that were asked something, those in trouble first: clients may invent any number.
    """
    listed, told = set[str](), set[str]()
    for model in router.table.models.values():
        for endpoint in model.endpoints:
            listed.add(endpoint.identity)
            if endpoint.disabled is None:
                told.add(endpoint.id)
                yield endpoint.id, router.book.of(endpoint)
    made = router.book.used_beside(listed)
    made.sort(key=lambda health: health.breaker.is_closed)
    for health in made[:MAX_ENDPOINTS]:
        if health.endpoint_id not in told:  # a reload may have listed that name, for another upstream
            told.add(health.endpoint_id)
            yield health.endpoint_id, health
