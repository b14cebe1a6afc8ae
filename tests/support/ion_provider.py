"""Ask IonProvider and read what it says: endpoints of local weights, whole answers by choice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ionrouter.providers.base import UpstreamRequest
from ionrouter.providers.ion import IonProvider
from ionrouter.routing.table import Endpoint, LocalModel, Provider, Timeouts
from ionrouter.schema.events import Chunk
from ionrouter.schema.request import Kind
from ionrouter.schema.usage import Usage

KV_BYTES = 64 << 20


_LOCAL = (
    *("numerics", "precision", "head_precision", "kv_precision", "max_running", "kv_memory_bytes"),
    *("prefix_cache", "unload"),
)


def local_endpoint(weights: Path | str, **changes: Any) -> Endpoint:
    """Make an endpoint of type ion; `changes` go to the endpoint, or to LocalModel where it has the field."""
    local = {name: changes.pop(name) for name in _LOCAL if name in changes}
    base: dict[str, Any] = {
        "id": "ion/tiny",
        "identity": "ion/tiny",
        "model_id": "tiny",
        "provider": Provider("ion", "Ion", "ion"),
        "upstream_model": "tiny",
        "tag": "ion",
        "timeouts": Timeouts(connect_s=60.0),
        "local": LocalModel(str(weights), **({"kv_memory_bytes": KV_BYTES} | local)),
    }
    return Endpoint(**(base | changes))


def ion_request(
    endpoint: Endpoint, body: Mapping[str, Any], kind: Kind = "chat", **changes: Any
) -> UpstreamRequest:
    return UpstreamRequest("gen-1", kind, endpoint, body, True, **changes)


@asynccontextmanager
async def provider_of(*endpoints: Endpoint, cache: Path) -> AsyncIterator[IonProvider]:
    """Load the endpoints' models; close at the end."""
    provider = IonProvider(cache)
    provider.prepare(endpoints)
    try:
        assert await provider.wait_ready() == ()
        yield provider
    finally:
        await provider.close()


@dataclass
class Choice:
    """What one choice said."""

    text: str = ""
    pieces: list[str] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    finishes: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Reply:
    """A whole answer; `order` is the choice of each chunk with content, as they came."""

    choices: dict[int, Choice] = field(default_factory=dict)
    usage: Usage | None = None
    chunks: list[Chunk] = field(default_factory=list)
    order: list[int] = field(default_factory=list)

    @property
    def text(self) -> str:
        return self.choices[0].text

    def add(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        assert self.usage is None, "the usage comes last"
        self.usage = chunk.usage
        for delta in chunk.choices:
            choice = self.choices.setdefault(delta.index, Choice())
            assert not choice.finishes, "nothing follows a finish"
            if "role" in delta.delta:
                choice.roles.append(delta.delta["role"])
            piece = delta.delta.get("content") or delta.delta.get("text") or ""
            choice.text += piece
            if piece:
                choice.pieces.append(piece)
                self.order.append(delta.index)
            if delta.logprobs is not None:
                choice.logprobs.append(delta.logprobs)
            if delta.finish_reason is not None:
                choice.finishes.append(delta.finish_reason)
                assert delta.native_finish_reason is not None


async def ask(provider: IonProvider, request: UpstreamRequest) -> Reply:
    reply = Reply()
    async with aclosing(provider.stream(request)) as chunks:
        async for chunk in chunks:
            reply.add(chunk)
    return reply
