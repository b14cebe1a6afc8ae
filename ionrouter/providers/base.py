"""The one method every provider has. Implementations translate; they never retry, choose or record."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from msgspec import Struct, field

from ionrouter.routing.table import Endpoint
from ionrouter.schema.events import ProviderBatch, ProviderEvent, SentBody, Taker
from ionrouter.schema.request import Kind
from ionrouter.schema.usage import Usage


class Held(Protocol):
    """Is told of a wait for a place among this server's own connections, which is no endpoint's doing."""

    def hold(self) -> None: ...

    def go(self, waited_s: float) -> None: ...


class QueueTime(Struct):
    """How long an attempt waited before work on it began (docs/api.md). Its client writes it."""

    seconds: float | None = None  # None: nobody measured it
    held: Held | None = None  # whom the client tells while it waits

    def note(self, seconds: float | None) -> None:
        """Of several parts of one attempt the first to begin counts: from there on it was worked on."""
        if seconds is not None and (self.seconds is None or seconds < self.seconds):
            self.seconds = seconds


class ToldUsage(Struct):
    """What the upstream has told of its usage so far, which it bills even if nothing comes of it.

    Its client writes it, before whatever it raises.
    """

    usage: Usage | None = None
    num_characters: int | None = None  # of a whole answer that broke off; None: none had begun


class UpstreamRequest(Struct, frozen=True):
    """One attempt. `body` is final: fields filtered for this endpoint, without `model` and `stream`."""

    request_id: str
    kind: Kind
    endpoint: Endpoint
    body: Mapping[str, Any]
    stream: bool  # ask the upstream to stream
    priority: int = 0  # local engine: higher runs sooner
    options: Mapping[str, Any] = field(default_factory=dict)  # provider.options of the matched provider
    tenant: str = ""  # local engine: cached prefixes are shared inside a tenant only (the caller's key id)
    traceparent: str | None = None  # W3C Trace Context, for upstreams that are to continue the trace
    queue: QueueTime = field(default_factory=QueueTime)  # this and the next change
    told: ToldUsage = field(default_factory=ToldUsage)
    sent: SentBody | None = None  # to be told what goes out, where somebody wants to see it
    taker: Taker | None = None  # may be offered a batch before it is yielded; what it takes is not yielded


class ProviderClient(Protocol):
    """A connection to one provider.

    `stream` yields Chunk events when `request.stream`, else exactly one Complete (Ion may yield Chunks
    always). It raises UpstreamError for every fault, with the failure class set, and RequestError never.
    Closing the iterator early (`aclose`) must cancel the work upstream at once and free what it holds.
    Connect, first-token and inter-token deadlines are enforced by dispatch around `anext`; a client only
    sets its transport's connect timeout from `request.endpoint.timeouts`.
    """

    def stream(self, request: UpstreamRequest) -> AsyncIterator[ProviderEvent]: ...

    async def close(self) -> None: ...


class BatchingClient(ProviderClient, Protocol):
    """A client that can hand on at once what came at once. `batches` yields lists of what `stream` yields."""

    def batches(self, request: UpstreamRequest) -> AsyncIterator[ProviderBatch]: ...


class CountingClient(ProviderClient, Protocol):
    """A client that knows the tokens of a prompt without asking for an answer."""

    async def count(self, request: UpstreamRequest) -> int | None:
        """Count them as an answer's usage would; None: not of this endpoint. Raises UpstreamError."""
        ...


class WholeClient(ProviderClient, Protocol):
    """A client that can answer what is not streamed with its one batch, without an iterator around it."""

    async def whole(self, request: UpstreamRequest) -> ProviderBatch: ...
