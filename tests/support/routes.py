"""Small routing tables and requests for tests of select and dispatch. No YAML, no network."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from ionrouter.access_log import AccessLog
from ionrouter.providers.fake import FakeClient
from ionrouter.router import Router
from ionrouter.routing.table import (
    BreakerRules,
    Endpoint,
    ModelRoute,
    Price,
    Provider,
    RoutingSettings,
    RoutingTable,
)
from ionrouter.schema.events import Chunk, Committed, Complete, Event, Finished, RequestRecord
from ionrouter.schema.request import InferenceRequest


def price(prompt: float = 0.0, completion: float = 0.0, **more: Any) -> Price:
    """Prices in USD per million tokens, as routes.yaml says them."""
    scaled = {k: v if k == "request" or v is None else v / 1e6 for k, v in more.items()}
    return Price(prompt / 1e6, completion / 1e6, **scaled)


def endpoint(
    name: str, model: str = "m", *, script: Mapping[str, Any] | None = None, **changes: Any
) -> Endpoint:
    """An endpoint of its own fake provider and failure domain; `name` is both id and provider slug."""
    provider = changes.pop("provider", None) or Provider(slug=name, name=name.upper(), type="fake")
    base = Endpoint(
        id=name,
        identity=changes.pop("identity", name),
        model_id=model,
        provider=provider,
        upstream_model=f"up-{name}",
        tag=name,
        domain=name,
        options=script or {},
    )
    if (cooldown_s := changes.pop("cooldown_s", None)) is not None:
        changes["breaker"] = BreakerRules(cooldown_s=cooldown_s)
    return replace(base, **changes)


def route(name: str, *endpoints: Endpoint, **changes: Any) -> ModelRoute:
    """A model with its endpoints."""
    owned = tuple(replace(e, model_id=name) for e in endpoints)
    return replace(ModelRoute(id=name, name=name, endpoints=owned), **changes)


def table(*routes: ModelRoute, **settings: Any) -> RoutingTable:
    """A table; `explore` is 0 unless said, so that tests are exact."""
    return RoutingTable(
        models={r.id: r for r in routes},
        aliases={},
        providers={e.provider.slug: e.provider for r in routes for e in r.endpoints},
        settings=RoutingSettings(**{"explore": 0.0, **settings}),
    )


def request(model: str = "m", **changes: Any) -> InferenceRequest:
    """A chat request with an estimate of 10 prompt tokens."""
    body = changes.pop("body", None) or {"messages": [{"role": "user", "content": "hi"}]}
    base = InferenceRequest(id="gen-1-x", kind="chat", model=model, body=body, prompt_tokens=10)
    return structs.replace(base, **changes)


@dataclass
class Clock:
    """A clock that is a number."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Heard:
    """An observer that keeps what it hears."""

    records: list[RequestRecord] = field(default_factory=list)

    def observe(self, record: RequestRecord) -> None:
        self.records.append(record)


@dataclass
class Bench:
    """A router over the fake provider, with what it did."""

    router: Router
    client: FakeClient
    heard: Heard

    @classmethod
    def of(cls, *routes: ModelRoute, seed: int = 7, **settings: Any) -> Bench:
        client, heard = settings.pop("client", None) or FakeClient(), Heard()
        clients = {"fake": client}
        clock = settings.pop("clock", None)
        more = {"clock": clock} if clock else {}
        router = Router(
            table(*routes, **settings),
            clients,
            observers=[AccessLog(), heard],
            rng=random.Random(seed),
            **more,
        )
        return cls(router, client, heard)

    async def run(self, asked: InferenceRequest | None = None) -> Answer:
        """Serve one request to its end."""
        answer = Answer()
        async with aclosing(self.router.stream(asked or request())) as events:
            async for event in events:
                answer.events.append(event)
        return answer

    def num_in_flight(self) -> int:
        return self.router.book.num_in_flight()


@dataclass
class Answer:
    """What a client got."""

    events: list[Event] = field(default_factory=list)

    @property
    def committed(self) -> Committed:
        return next(e for e in self.events if isinstance(e, Committed))

    @property
    def finished(self) -> Finished:
        return next(e for e in self.events if isinstance(e, Finished))

    @property
    def text(self) -> str:
        whole = [e for e in self.events if isinstance(e, Complete)]
        if whole:
            return str(whole[0].choices[0].message.get("content"))
        chunks = [e for e in self.events if isinstance(e, Chunk)]
        return "".join(c.delta.get("content") or "" for chunk in chunks for c in chunk.choices)


async def drain(events: AsyncIterator[Event]) -> Sequence[Event]:
    """Read an iterator to its end."""
    return [event async for event in events]
