"""Play a world with the production router, request by request, in virtual time.

Everything from resolve to the last event is the code that serves: Router.batches with its select, dispatch,
attempts, health, breakers and affinity. Only the provider client and the clock are not.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace

from ionrouter.errors import IonrouterError
from ionrouter.router import Router
from ionrouter.routing.table import (
    Endpoint,
    Expected,
    ModelRoute,
    Provider,
    RoutingTable,
    Timeouts,
)
from ionrouter.schema.events import RequestRecord
from ionrouter.schema.request import InferenceRequest
from ionrouter.simulation.scenario import Ask, Scenario, Upstream
from ionrouter.simulation.upstreams import SimulatedClient
from ionrouter.simulation.virtual_time import run as run_virtually
from ionrouter.simulation.world import World

MODEL = "simulated"


@dataclass(frozen=True, slots=True)
class Played:
    """One request and what became of it."""

    ask: Ask
    record: RequestRecord

    @property
    def first_pick(self) -> str:
        """The endpoint tried first; empty if none was."""
        return self.record.attempts[0].endpoint_id if self.record.attempts else ""


@dataclass(slots=True)
class _Ears:
    """Hears the records."""

    by_number: dict[int, RequestRecord] = field(default_factory=dict)

    def observe(self, record: RequestRecord) -> None:
        self.by_number[int(record.id)] = record


def play(world: World, strategy: str, *, meddle: Callable[[Router], None] | None = None) -> list[Played]:
    """Serve every request of a world; in order of arrival. `meddle` may touch the router before it starts."""
    return run_virtually(_play(world, strategy, meddle))


async def _play(world: World, strategy: str, meddle: Callable[[Router], None] | None) -> list[Played]:
    loop, ears = asyncio.get_running_loop(), _Ears()
    table = table_of(world.scenario, strategy)
    client = SimulatedClient(world, loop.time)
    router = Router(
        table,
        {"fake": client},
        observers=(ears,),
        clock=loop.time,
        wall=loop.time,
        rng=random.Random(f"{world.seed} {strategy}"),
    )
    if meddle is not None:
        meddle(router)
    async with asyncio.TaskGroup() as tasks:
        turns: dict[str | None, asyncio.Lock] = defaultdict(asyncio.Lock)
        for number, ask in enumerate(world.asks):
            await asyncio.sleep(ask.at - loop.time())
            turn = nullcontext() if ask.session is None else turns[ask.session]
            tasks.create_task(_serve(router, number, ask, turn))
    return [Played(ask, ears.by_number[number]) for number, ask in enumerate(world.asks)]


async def _serve(router: Router, number: int, ask: Ask, turn: AbstractAsyncContextManager[None]) -> None:
    async with turn:  # a session's next turn waits for the answer before it
        await _serve_one(router, number, ask)


async def _serve_one(router: Router, number: int, ask: Ask) -> None:
    request = InferenceRequest(
        str(number),
        "chat",
        MODEL,
        {},
        stream=True,
        prompt_tokens=ask.prompt_tokens,
        session_id=ask.session,
        arrived_at=asyncio.get_running_loop().time(),
    )
    try:
        async for _ in router.batches(request):
            pass
    except IonrouterError:
        return  # its record says why


def table_of(scenario: Scenario, strategy: str) -> RoutingTable:
    """The routes that a scenario is about: one model."""
    route = ModelRoute(MODEL, MODEL, tuple(_endpoint(upstream, scenario) for upstream in scenario.upstreams))
    settings = replace(scenario.settings, strategy=strategy)
    return RoutingTable({MODEL: route}, {}, {}, settings=settings)


def _endpoint(upstream: Upstream, scenario: Scenario) -> Endpoint:
    name = upstream.name
    return Endpoint(
        id=name,
        identity=name,
        model_id=MODEL,
        provider=Provider(slug=name, name=name, type="fake"),
        upstream_model=name,
        tag=name,
        price=upstream.price,
        timeouts=Timeouts(first_token_s=scenario.first_token_s, inter_token_s=600.0),
        expected=Expected(upstream.expected_ttft_s, upstream.expected_throughput),
        domain=name,
        weight=upstream.weight,
        caches=upstream.caches,
    )
