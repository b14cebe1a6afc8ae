"""An edge before a real router and a scripted upstream, that counts which batches were taken at once."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ionrouter.providers.openai_http import OpenAIProvider
from ionrouter.router import Router
from ionrouter.routing.table import Hedge, Price, Provider, Timeouts
from ionrouter.schema.events import Batch, Chunk, Lane, ProviderBatch, RequestRecord, Taker
from ionrouter.schema.request import InferenceRequest
from tests.support.edge import EdgeServer, edge_server
from tests.support.routes import Heard, endpoint, route, table
from tests.support.upstream import Script, Upstream, sse

HI = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}


@dataclass
class Counted:
    """A router, and how many batches were taken at once, refused, yielded. Not `pumps`: none is offered."""

    router: Router
    pumps: bool = True
    taken: int = 0
    alone: int = 0  # of these, texts by themselves
    refused: int = 0
    yielded: int = 0

    @property
    def table(self) -> Any:
        return self.router.table

    def explain(self, request: InferenceRequest) -> Any:
        return self.router.explain(request)

    async def batches(
        self, request: InferenceRequest, taker: Taker | None = None, tell: Any = None
    ) -> AsyncGenerator[Batch, None]:
        counted = None if taker is None or not self.pumps else _CountedTaker(self, taker)
        batches = self.router.batches(request, counted, tell)
        async with aclosing(batches) as source:  # type: ignore[type-var]
            async for batch in source:
                self.yielded += 1
                yield batch


@dataclass
class _CountedTaker:
    counts: Counted
    taker: Taker

    def count(self, is_taken: bool) -> bool:
        self.counts.taken += is_taken
        self.counts.refused += not is_taken
        return is_taken

    def take(self, batch: ProviderBatch) -> bool:
        return self.count(self.taker.take(batch))

    def lane(self, pattern: Chunk) -> Lane | None:
        lane = self.taker.lane(pattern)
        return None if lane is None else partial(self.alone, lane)

    def alone(self, lane: Lane, text: str, literal: bytes) -> bool:
        is_taken = self.count(lane(text, literal))
        self.counts.alone += is_taken
        return is_taken


@dataclass
class World:
    server: EdgeServer
    routes: Counted
    up: Upstream
    heard: Heard = field(default_factory=Heard)

    async def ask(self, script: Script, path: str = "/api/v1/chat/completions", **body: Any) -> str:
        self.up.default = script
        status, _, told = await self.server.post(path, {**HI, **body})
        assert status == 200, told
        return str(told)

    @property
    def record(self) -> RequestRecord:
        return self.heard.records[-1]


@asynccontextmanager
async def world(
    tmp_path: Path, *, pumps: bool = True, hedge: Hedge | None = None, **timeouts: float
) -> AsyncIterator[World]:
    """An edge, a router and one upstream; hedged, the upstream stands behind two endpoints."""
    with Upstream() as up:
        limits = Timeouts(**{"connect_s": 60.0, "first_token_s": 60.0, "inter_token_s": 60.0, **timeouts})
        endpoints = [
            endpoint(
                name,
                provider=Provider(name, "Up", "openai", base_url=up.base_url),
                price=Price(1e-6, 2e-6),
                timeouts=limits,
                supported_parameters=frozenset({"tools", "max_tokens"}),
            )
            for name in ("up", *(("other",) if hedge else ()))
        ]
        routing = table(route("m", *endpoints, hedge=hedge), heartbeat_after_s=30.0)
        client, heard = OpenAIProvider({}), Heard()
        routes = Counted(Router(routing, {"openai": client}, observers=[heard]), pumps)
        try:
            async with edge_server(tmp_path, table=routing, router=routes) as server:
                yield World(server, routes, up, heard)
        finally:
            await client.close()


def paced(steps: Sequence[Any]) -> Script:
    """Events, bytes and pauses, each event in a write of its own, without [DONE] or an end of the body."""
    pieces = [b"data: " + json.dumps(s).encode() + b"\n\n" if isinstance(s, dict) else s for s in steps]
    head = sse([]).steps[0]
    framed = [b"%x\r\n%b\r\n" % (len(p), p) if isinstance(p, bytes) else p for p in pieces]
    return Script((head, *framed))
