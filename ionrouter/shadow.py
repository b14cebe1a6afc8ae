"""Copies a share of a model's requests to another endpoint. The caller neither waits for it nor pays.

Decides who is copied; how a copy runs is aside.py's business.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from ionrouter.aside import Aside
from ionrouter.balancing.fields import contract_needs
from ionrouter.balancing.plan import Plan
from ionrouter.balancing.screen import Subject, screen
from ionrouter.departures import deadline_of
from ionrouter.routing.table import Endpoint, ModelRoute, RoutingSettings, Shadow
from ionrouter.schema.load import EngineLoad
from ionrouter.schema.request import InferenceRequest


@dataclass(slots=True)
class Shadows:
    """`started` and `skipped` count copies by endpoint id, for the metrics."""

    aside: Aside
    engine_load: Callable[[Endpoint], EngineLoad | None]
    started: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)

    def follow(self, request: InferenceRequest, plan: Plan, settings: RoutingSettings) -> None:
        """Copy this request, if its share, the endpoint and the request's own filters say so. Never waits."""
        route = plan.routes[0]
        shadow, parts = route.shadow, self.aside.parts
        if shadow is None or not self.aside.may_start() or parts.rng.random() >= shadow.share:
            return
        endpoint = shadow.endpoint
        permit = None
        if self._may_copy(shadow, request, plan, route):
            permit = parts.book.of(endpoint).breaker.try_acquire(parts.clock())
        if permit is None:
            self.skipped[endpoint.id] += 1
            return
        self.started[endpoint.id] += 1
        copy = replace(request, id=f"{request.id}-shadow")
        deadline = deadline_of(endpoint, request, settings)
        own = _route_of(endpoint, route)
        self.aside.start(copy, endpoint, own, permit, role="shadow", deadline=deadline)

    def _may_copy(self, shadow: Shadow, request: InferenceRequest, plan: Plan, route: ModelRoute) -> bool:
        """Ask whether a copy does no harm and tells something: what the real one uses is measured anyway."""
        endpoint, parts = shadow.endpoint, self.aside.parts
        if self.aside.running[endpoint.identity] >= shadow.max_running:
            return False
        if plan.candidates and plan.candidates[0].endpoint.identity == endpoint.identity:
            return False
        load = self.engine_load(endpoint)
        if load is not None and not load.ready:
            return False
        health, now = parts.book.of(endpoint), parts.clock()
        subject = Subject(endpoint, request, health, load, now, contract_needs(request), route)
        return screen(subject, route) is None


def _route_of(endpoint: Endpoint, copied: ModelRoute) -> ModelRoute:
    """Name the model that answers, for the figures: often another one than that which is copied."""
    is_own = endpoint.model_id == copied.id
    return copied if is_own else dataclasses.replace(copied, id=endpoint.model_id)
