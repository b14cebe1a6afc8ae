"""Endpoints, attempts and readers of provider streams for tests: short ways to say what a test is about."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast

from ionrouter.errors import UpstreamError
from ionrouter.providers.base import UpstreamRequest
from ionrouter.routing.table import Endpoint, Provider, ProviderType, Timeouts
from ionrouter.schema.events import Chunk, Complete
from ionrouter.schema.request import Kind
from ionrouter.schema.usage import Usage
from tests.support.upstream import Upstream

HELLO: Mapping[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
# Guards, far above what anything takes: dispatch enforces the real ones.
PATIENT = Timeouts(connect_s=60.0, first_token_s=60.0, inter_token_s=60.0)


def make_endpoint(
    base_url: str | None,
    *,
    type: ProviderType = "openai",
    litellm_provider: str | None = None,
    key_variable: str | None = None,
    timeouts: Timeouts = PATIENT,
    options: Mapping[str, Any] | None = None,
    upstream_model: str = "up-model",
    **provider: Any,
) -> Endpoint:
    return Endpoint(
        id="up/m",
        identity="x",
        model_id="m",
        provider=Provider(
            slug="up", name="Up", type=type, base_url=base_url, litellm_provider=litellm_provider, **provider
        ),
        upstream_model=upstream_model,
        tag="up",
        timeouts=timeouts,
        key_variable=key_variable,
        options=options or {},
    )


def make_request(
    endpoint: Endpoint,
    body: Mapping[str, Any] = HELLO,
    *,
    stream: bool = True,
    kind: Kind = "chat",
    options: Mapping[str, Any] | None = None,
) -> UpstreamRequest:
    return UpstreamRequest(
        request_id="gen-1", kind=kind, endpoint=endpoint, body=body, stream=stream, options=options or {}
    )


def ask(up: Upstream, **options: Any) -> UpstreamRequest:
    """One attempt at a scripted upstream; `endpoint`: options of make_endpoint, the rest: of make_request."""
    endpoint = make_endpoint(up.base_url, **options.pop("endpoint", {}))
    return make_request(endpoint, options.pop("body", HELLO), **options)


@dataclass
class Answer:
    """What a client would have put together from a provider's events, and the error that ended it."""

    events: list[Chunk | Complete] = field(default_factory=list)
    error: UpstreamError | None = None

    @property
    def chunks(self) -> list[Chunk]:
        return [event for event in self.events if isinstance(event, Chunk)]

    @property
    def complete(self) -> Complete:
        (only,) = self.events
        return cast(Complete, only)

    def text(self, index: int = 0, key: str = "content") -> str:
        return "".join(
            c.delta.get(key) or "" for chunk in self.chunks for c in chunk.choices if c.index == index
        )

    def finishes(self) -> dict[int, tuple[str | None, str | None]]:
        return {
            c.index: (c.finish_reason, c.native_finish_reason)
            for chunk in self.chunks
            for c in chunk.choices
            if c.finish_reason is not None
        }

    def usages(self) -> list[Usage]:
        return [event.usage for event in self.events if event.usage is not None]

    def tool_calls(self, index: int = 0) -> list[tuple[str, str, str]]:
        """Accumulate as the openai client does: by index; (id, name, arguments)."""
        calls: dict[int, list[str]] = {}
        for chunk in self.chunks:
            for choice in chunk.choices:
                for part in choice.delta.get("tool_calls", ()) if choice.index == index else ():
                    call = calls.setdefault(part["index"], ["", "", ""])
                    call[0] += part.get("id", "")
                    call[1] += part["function"].get("name", "")
                    call[2] += part["function"].get("arguments", "")
        return [(call[0], call[1], call[2]) for _, call in sorted(calls.items())]


async def collect(provider: Any, request: UpstreamRequest) -> Answer:
    """Read a provider's stream to its end or its UpstreamError; any other exception is the test's."""
    answer = Answer()
    try:
        async with aclosing(provider.stream(request)) as events:
            async for event in events:
                answer.events.append(event)
    except UpstreamError as error:
        answer.error = error
    return answer
