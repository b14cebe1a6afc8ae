"""Active health checks: real requests for one token, to endpoints long unasked or open.

At low rate, with jitter, one at a time per endpoint; never during a Retry-After, never to wake a cold model.
A success closes an open breaker, so that callers need not be the trial. Passive checks are every attempt's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ionrouter.aside import Aside
from ionrouter.balancing.circuit_breaker import BreakerState, Permit
from ionrouter.balancing.health import Health
from ionrouter.routing.resolve import EMBEDDINGS
from ionrouter.routing.table import Endpoint, ModelRoute, RoutingTable
from ionrouter.schema.load import EngineLoad
from ionrouter.schema.request import InferenceRequest, Kind

TICK_S = 1.0
OPEN_EVERY_S = 30.0  # at most so long between probes of an endpoint whose breaker is open
JITTER = 0.2  # of every wait, up or down: many routers must not ask together
MAX_RUNNING = 4
DEADLINE_S = 60.0
WORD = "ping"


@dataclass(slots=True)
class Prober:
    """Call `tick` now and then, or let `run` do it."""

    aside: Aside
    table: Callable[[], RoutingTable]
    engine_load: Callable[[Endpoint], EngineLoad | None]
    _probed_at: dict[str, float] = field(default_factory=dict)  # by identity; first seen counts
    _jitter: dict[str, float] = field(default_factory=dict)  # factor of the next wait
    _num_probes: int = 0

    async def run(self) -> None:
        """Probe until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()

    def tick(self) -> None:
        """Start what is due."""
        parts = self.aside.parts
        now, seen = parts.clock(), dict[str, float]()
        for route, endpoint in _probed(self.table()):
            identity = endpoint.identity
            seen[identity] = self._probed_at.setdefault(identity, now)
            self._jitter.setdefault(identity, self._drawn())
            health = parts.book.of(endpoint)
            if now < self._due_at(endpoint, health, now) or not self._may_probe(endpoint, health, now):
                continue
            seen[identity] = now
            self._jitter[identity] = self._drawn()
            self._probe(route, endpoint, health, now)
        self._probed_at = seen
        self._jitter = {name: factor for name, factor in self._jitter.items() if name in seen}

    def _due_at(self, endpoint: Endpoint, health: Health, now: float) -> float:
        """The moment at which nothing has been heard for too long."""
        heard_at, wait_s = max(self._probed_at[endpoint.identity], health.last_started_at), endpoint.probe_s
        if health.breaker.state(now) is not BreakerState.CLOSED:
            heard_at, wait_s = max(heard_at, health.last_failed_at), min(wait_s, OPEN_EVERY_S)
        return heard_at + wait_s * self._jitter[endpoint.identity]

    def _drawn(self) -> float:
        return 1 + self.aside.parts.rng.uniform(-JITTER, JITTER)

    def _may_probe(self, endpoint: Endpoint, health: Health, now: float) -> bool:
        if self.aside.num_running >= MAX_RUNNING or not self.aside.may_start():
            return False
        load = self.engine_load(endpoint)
        is_awake = load is None or load.ready
        return is_awake and not health.flights and health.retry_at <= now

    def _probe(self, route: ModelRoute, endpoint: Endpoint, health: Health, now: float) -> None:
        # Before an open breaker's time is over there is no trial to claim: a failure then changes nothing.
        permit = health.breaker.try_acquire(now) or Permit(is_trial=False)
        self._num_probes += 1
        request = probe_request(route, f"probe-{self._num_probes}", now)
        self.aside.start(request, endpoint, route, permit, role="probe", deadline=now + DEADLINE_S)


def _probed(table: RoutingTable) -> Iterator[tuple[ModelRoute, Endpoint]]:
    """Endpoints to probe, each upstream once."""
    seen = set[str]()
    for route in table.models.values():
        for endpoint in route.endpoints:
            is_wanted = endpoint.probe_s > 0 and endpoint.disabled is None and kind_of(route) is not None
            if is_wanted and endpoint.identity not in seen:
                seen.add(endpoint.identity)
                yield route, endpoint


def kind_of(route: ModelRoute) -> Kind | None:
    """What a model can be asked for cheaply; None: neither text nor vectors."""
    if "text" in route.output_modalities:
        return "chat"
    return "embeddings" if EMBEDDINGS in route.output_modalities else None


def probe_request(route: ModelRoute, name: str, now: float) -> InferenceRequest:
    """The smallest real request: one token, or one vector."""
    if kind_of(route) == "embeddings":
        return InferenceRequest(
            name, "embeddings", route.id, {"input": WORD}, prompt_tokens=1, arrived_at=now
        )
    body = {"messages": [{"role": "user", "content": WORD}], "max_tokens": 1}
    return InferenceRequest(
        name,
        "chat",
        route.id,
        body,
        stream=True,
        parameters=frozenset({"max_tokens"}),
        prompt_tokens=1,
        max_tokens=1,
        arrived_at=now,
    )
