"""The HTTP edge alone on a real socket: its router is a script, everything else is real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from ionrouter.api.doors import Handler
from ionrouter.api.readiness import Phase, Readiness
from ionrouter.api.routes import make_application
from ionrouter.api.server import EnvelopeRunner
from ionrouter.api.state import Edge, Routes
from ionrouter.metrics import Metrics
from ionrouter.routing.table import Endpoint, ModelRoute, Price, Provider, RoutingSettings, RoutingTable
from ionrouter.schema.assemble import Assembly
from ionrouter.schema.events import Batch, ChoiceDelta, Chunk, Committed, Event, Finished, Taker
from ionrouter.schema.request import InferenceRequest
from ionrouter.schema.usage import Cost, Usage
from ionrouter.settings import Settings
from ionrouter.stats.book import StatsBook
from ionrouter.store.keys import KeyStore
from ionrouter.store.sqlite_file import SqliteFile

Answer = Callable[[InferenceRequest], AsyncGenerator[Event, None]]
USAGE = Usage(prompt_tokens=7, completion_tokens=2)
COST = Cost(prompt=0.000007, completion=0.000004)
COMMITTED = Committed("fake/m", "acme/m", "Fake", "score 0.0002, first pick of 1", 1)
FINISHED = Finished(USAGE, COST, (), 0.01)


def text(content: str, **delta: Any) -> Chunk:
    return Chunk((ChoiceDelta(0, {"content": content, **delta}),))


def stop(reason: Any = "stop") -> Chunk:
    return Chunk((ChoiceDelta(0, {}, reason, reason),))


async def hello(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
    """Answer "Hello" in two pieces."""
    for event in (COMMITTED, text("Hel"), text("lo"), stop(), FINISHED):
        yield event


def a_table(**settings: Any) -> RoutingTable:
    provider = Provider("fake", "Fake", "fake")
    endpoint = Endpoint(
        id="fake/m",
        identity="fake-m",
        model_id="acme/m",
        provider=provider,
        upstream_model="m",
        tag="fake",
        price=Price(prompt=1e-6, completion=2e-6),
        context_length=4096,
        supported_parameters=frozenset({"temperature", "tools", "tool_choice", "max_tokens"}),
    )
    asleep = Endpoint(
        id="far/m",
        identity="far-m",
        model_id="acme/m",
        provider=Provider("far", "Far", "openai", base_url="https://far.example/v1"),
        upstream_model="m",
        tag="far",
        disabled="FAR_API_KEY is unset",
    )
    return RoutingTable(
        models={"acme/m": ModelRoute("acme/m", "Acme M", (endpoint, asleep), created=1733400000)},
        aliases={"m": "acme/m"},
        providers={"fake": provider, "far": asleep.provider},
        settings=RoutingSettings(**settings),
    )


@dataclass
class ScriptedRoutes:
    """Answers as told, whole when asked to (as the router does), and remembers what was asked."""

    answer: Answer = hello
    table: RoutingTable = field(default_factory=a_table)
    requests: list[InferenceRequest] = field(default_factory=list)
    counted: int | None = None  # tokens of every prompt
    num_open: int = 0
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def batches(
        self,
        request: InferenceRequest,
        taker: Taker | None = None,
        tell: Callable[[Any], None] | None = None,
    ) -> AsyncGenerator[Batch, None]:
        self.requests.append(request)
        if tell is not None:
            tell(self.explain(request))
        self.num_open += 1
        self.opened.set()
        try:
            assembly = Assembly()
            async for event in self.answer(request):
                if isinstance(event, Chunk) and not request.stream:
                    assembly.add(event)
                    continue
                if isinstance(event, Finished) and not request.stream:
                    yield [assembly.complete()]
                yield [event]
        finally:
            self.num_open -= 1
            self.closed.set()

    async def count_prompt(self, request: InferenceRequest) -> int | None:
        self.requests.append(request)
        return self.counted

    def explain(self, request: InferenceRequest) -> Any:
        return {"model": request.model, "prompt_tokens": request.prompt_tokens}


async def no_reload() -> Mapping[str, Any]:
    return {"changed": False}


@dataclass
class EdgeServer:
    """A listening edge and a client session for it."""

    edge: Edge
    routes: ScriptedRoutes
    base: str
    host: str
    port: int
    session: aiohttp.ClientSession

    def url(self, path: str) -> str:
        return f"{self.base}{path}"

    async def chat(self, *, headers: Mapping[str, str] | None = None, **body: Any) -> tuple[int, Any, Any]:
        """POST a chat request; returns status, headers and JSON (or the text of a stream)."""
        data = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **body}
        return await self.post("/api/v1/chat/completions", data, headers=headers)

    async def post(
        self, path: str, data: Any, *, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any, Any]:
        async with self.session.post(self.url(path), json=data, headers=headers) as answer:
            is_json = answer.content_type == "application/json"
            return answer.status, answer.headers, await (answer.json() if is_json else answer.text())

    async def get(self, path: str, *, headers: Mapping[str, str] | None = None) -> tuple[int, Any, Any]:
        async with self.session.get(self.url(path), headers=headers) as answer:
            is_json = answer.content_type == "application/json"
            return answer.status, answer.headers, await (answer.json() if is_json else answer.text())


@asynccontextmanager
async def edge_server(
    tmp_path: Path,
    answer: Answer = hello,
    *,
    asks_for_keys: bool = False,
    table: RoutingTable | None = None,
    reload: Callable[[], Awaitable[Mapping[str, Any]]] = no_reload,
    router: Routes | None = None,
    pages: Iterable[tuple[str, Handler]] = (),
    **settings: Any,
) -> AsyncIterator[EdgeServer]:
    routes = ScriptedRoutes(answer, table or a_table())
    chosen = Settings(state_dir=tmp_path / "state", cache_dir=tmp_path / "cache", **settings)
    edge = Edge(
        settings=chosen,
        router=router or routes,
        stats=StatsBook(),
        metrics=Metrics(),
        readiness=Readiness(Phase.READY),
        reload=reload,
        asks_for_keys=asks_for_keys,
        keys=KeyStore.open(SqliteFile(chosen.database_path)),
    )
    runner = EnvelopeRunner(make_application(edge, pages))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        async with aiohttp.ClientSession() as session:
            yield EdgeServer(edge, routes, f"http://{host}:{port}", host, port, session)
    finally:
        await runner.cleanup()
        edge.keys.close()
