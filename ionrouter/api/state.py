"""What every handler may reach, put together by app.py. Holds parts; decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiohttp import web

from ionrouter.accounting import Accounts
from ionrouter.api.inflight import InFlight
from ionrouter.api.readiness import Readiness
from ionrouter.metrics import Metrics
from ionrouter.response_cache import ResponseCache
from ionrouter.routing.table import Endpoint, RoutingTable
from ionrouter.schema.callers_paths import CallersPaths
from ionrouter.schema.events import Batch, Taker
from ionrouter.schema.kept import KeptAnswer
from ionrouter.schema.load import EngineLoad
from ionrouter.schema.request import InferenceRequest
from ionrouter.settings import Settings
from ionrouter.stats.book import StatsBook
from ionrouter.store.batches import BatchStore
from ionrouter.store.keys import ApiKey, KeyStore
from ionrouter.tracing.service import Tracing
from ionrouter.tracing.spans import RequestTrace


class Routes(Protocol):
    """What the edge needs of the router."""

    @property
    def table(self) -> RoutingTable:
        """What new requests read."""
        ...

    def batches(
        self,
        request: InferenceRequest,
        taker: Taker | None = None,
        tell: Callable[[Any], None] | None = None,
    ) -> AsyncIterator[Batch]:
        """Committed, then Chunks or one Complete, then Finished, in batches as they came, but those taken.

        `tell` hears the plan before that.
        """
        ...

    def replay(self, request: InferenceRequest, kept: KeptAnswer) -> AsyncIterator[Batch]:
        """The same of an answer that was kept, asking nobody."""
        ...

    async def count_prompt(self, request: InferenceRequest) -> int | None:
        """The prompt's tokens, where somebody here can count them."""
        ...

    def explain(self, request: InferenceRequest) -> Any:
        """A dry run, as a dataclass."""
        ...


Reload = Callable[[], Awaitable[Mapping[str, Any]]]
EndpointStatus = Callable[[Endpoint], int]  # OpenRouter's status: 0 operational, negative degraded
# Why the engine inside cannot answer for an endpoint now; True: with places on disk.
Unavailable = Callable[[Endpoint, bool], str | None]
LoadOf = Callable[[Endpoint], EngineLoad | None]  # of the engine inside that answers for an endpoint


@dataclass(slots=True)
class Edge:
    """The parts behind the HTTP edge."""

    settings: Settings
    router: Routes
    stats: StatsBook
    metrics: Metrics
    readiness: Readiness
    reload: Reload
    asks_for_keys: bool
    keys: KeyStore | None  # None: no state folder could be opened, and keys are off
    endpoint_status: EndpointStatus = lambda _endpoint: 0
    unavailable: Unavailable = lambda _endpoint, _whole: None
    engine_load: LoadOf = lambda _endpoint: None
    accounts: Accounts | None = None  # None: nothing is kept
    tracing: Tracing | None = None
    batches: BatchStore | None = None  # None: there is no Batch API here
    in_flight: InFlight = field(default_factory=InFlight)
    stats_turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # of answers made of statistics: one works
    kept: ResponseCache[KeptAnswer] = field(init=False)

    def __post_init__(self) -> None:
        self.kept = ResponseCache(self.settings.response_cache_bytes)
        self.metrics.cache_bytes.set_function(lambda: self.kept.num_bytes)
        self.metrics.in_flight.set_function(self.in_flight.__len__)


EDGE = web.AppKey("edge", Edge)
GENERATION_ID = web.RequestKey("generation_id", str)
KEY = web.RequestKey("key", ApiKey)
METADATA = web.RequestKey("metadata", dict)  # `openrouter_metadata` of an error on its way out
PATHS = web.RequestKey("paths", CallersPaths)  # of a request that is translated into a chat request
TRACE = web.RequestKey("trace", RequestTrace)
ROUTED = web.RequestKey("routed", bool)  # the router has it, and tells its end itself


def is_owner(request: web.Request) -> bool:
    """Whether the caller may see what is the server's owner's alone, as places on its disk."""
    key = request.get(KEY)
    return not request.app[EDGE].asks_for_keys or (key is not None and key.kind == "management")
