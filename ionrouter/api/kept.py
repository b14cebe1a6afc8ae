"""The response cache at the edge: who wants it, what makes two requests the same, what goes in and comes out.

Asked for by header or by a preset. Everybody else pays for one look at the headers.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from multidict import istr

from ionrouter.api.body import read_json
from ionrouter.api.state import EDGE, KEY, Edge
from ionrouter.response_cache import Entry
from ionrouter.schema import json
from ionrouter.schema.events import Batch, Chunk, Lane, ProviderBatch, Taker
from ionrouter.schema.kept import KeptAnswer, Recording
from ionrouter.schema.presets import CACHE_ENABLED, CACHE_TTL, MAX_CACHE_TTL_S, preset_of
from ionrouter.schema.request import InferenceRequest

HEADER = istr("X-OpenRouter-Cache")  # every request is asked for it: a third of the time of a plain text
DEFAULT_TTL_S = 300
LARGE = 256 * 1024  # bytes of a body that another thread makes the digest of
_WHOLE_NUMBER = re.compile(r"\s*([+-]?)0*([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request that is to be cached asks for."""

    ttl_s: int
    clears: bool  # what is kept is of no use to it: an answer is fetched anew, and kept instead


@dataclass(slots=True)
class Visit:
    """One request's turn at the cache. `found`: what it is given; None: what it is given is kept."""

    edge: Edge
    key: Hashable
    ttl_s: int
    version: str  # of the routes it was read by
    found: Entry[KeptAnswer] | None
    headers: Mapping[str, str] = field(default_factory=dict)

    def batches(
        self, wanted: InferenceRequest, taker: Taker | None, tell: Callable[[Any], None] | None
    ) -> AsyncIterator[Batch]:
        """The answer's events, as the router gives them."""
        routes = self.edge.router
        if self.found is not None:
            return routes.replay(wanted, self.found.value)
        recording = Recording(self.edge.kept.max_value_bytes)
        overheard = None if taker is None else _Overheard(taker, recording)
        return _Recorded(routes.batches(wanted, overheard, tell), recording, self, wanted.id)

    def keep(self, answer: KeptAnswer | None) -> None:
        """Keep an answer, unless the routes have changed meanwhile."""
        if answer is not None and self.edge.router.table.version == self.version:
            self.edge.kept.keep(self.key, answer, answer.num_bytes, self.ttl_s, time.monotonic())


def may_ask(request: web.Request, wanted: InferenceRequest) -> bool:
    """Ask whether it may want the cache; `cache_enabled` of its own makes `visit` look, and find nothing."""
    return HEADER in request.headers or CACHE_ENABLED in wanted.gateway_fields


async def visit(request: web.Request, wanted: InferenceRequest, surface: str) -> Visit | None:
    """Look for the request's answer; None where it does not want the cache, or nothing may be kept of it."""
    edge = request.app[EDGE]
    if edge.kept.max_bytes == 0 or wanted.overrides.explain or wanted.overrides.echoes:
        return None
    table = edge.router.table
    body = await read_json(request, edge.settings.max_body_bytes)  # again: the translated one says less
    wish = wish_of(request.headers, preset_of(body, table.presets))
    if wish is None:
        return None
    digest = _digest(body) if len(await request.read()) < LARGE else await asyncio.to_thread(_digest, body)
    caller = request.get(KEY)
    key = (caller.hash if caller else None, surface, wanted.kind, wanted.stream, table.version, digest)
    if wish.clears:
        edge.kept.drop(key)
    if edge.router.table.version != table.version:  # the request was read by routes that are gone
        return None
    now = time.monotonic()
    found = edge.kept.find(key, now)
    edge.metrics.cache_lookup("miss" if found is None else "hit")
    return Visit(edge, key, wish.ttl_s, table.version, found, _told(wish, found, now))


def wish_of(headers: Mapping[str, str], preset: Mapping[str, Any]) -> Wish | None:
    """Read whether and for how long to keep; a preset that says no is not overruled by a header."""
    by_preset = preset.get(CACHE_ENABLED)
    by_header = {"true": True, "false": False}.get(headers.get(HEADER, "").strip().lower())
    if by_preset is False or not (by_preset if by_header is None else by_header):
        return None
    ttl_s = whole_number(headers.get(f"{HEADER}-TTL", ""))
    if ttl_s is None:
        ttl_s = preset.get(CACHE_TTL, DEFAULT_TTL_S)
    clears = headers.get(f"{HEADER}-Clear", "").strip().lower() == "true"
    return Wish(min(max(ttl_s, 1), MAX_CACHE_TTL_S), clears)


def whole_number(text: str) -> int | None:
    """The number that a text begins with, as JavaScript's parseInt reads it; huge ones are only that."""
    found = _WHOLE_NUMBER.match(text)
    return None if found is None else int(found[1] + found[2])


def _digest(body: Any) -> bytes:
    """A body's digest: with the order of its properties, without the spaces between them."""
    return hashlib.sha256(json.dumps(body)).digest()


def _told(wish: Wish, found: Entry[KeptAnswer] | None, now: float) -> Mapping[str, str]:
    if found is None:
        return {f"{HEADER}-Status": "MISS", f"{HEADER}-TTL": str(wish.ttl_s)}
    return {
        f"{HEADER}-Status": "HIT",
        f"{HEADER}-TTL": str(found.ttl_s),
        f"{HEADER}-Age": str(int(now - found.made_at)),
        f"{HEADER}-Source-Id": found.value.source.id,
    }


class _Recorded:
    """An answer's batches on their way, taken down; at their good end they are kept."""

    __slots__ = ("_recording", "_request_id", "_source", "_visit")

    def __init__(
        self, source: AsyncIterator[Batch], recording: Recording, visit: Visit, request_id: str
    ) -> None:
        self._source, self._recording = source, recording
        self._visit, self._request_id = visit, request_id

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        try:
            batch = await anext(self._source)
        except StopAsyncIteration:
            self._visit.keep(self._recording.answer(self._request_id))
            raise
        self._recording.add(batch)
        return batch

    async def aclose(self) -> None:
        await self._source.aclose()  # type: ignore[attr-defined]  # a generator

    async def athrow(self, error: BaseException) -> Batch:
        thrown: Batch = await self._source.athrow(error)  # type: ignore[attr-defined]
        return thrown


class _Overheard:
    """Whoever is served, where what it takes is taken down."""

    __slots__ = ("_recording", "_taker")

    def __init__(self, taker: Taker, recording: Recording) -> None:
        self._taker, self._recording = taker, recording

    def take(self, batch: ProviderBatch) -> bool:
        if not self._taker.take(batch):
            return False
        self._recording.add(batch)
        return True

    def lane(self, pattern: Chunk) -> Lane | None:
        return None  # what goes there passes by
