"""What flows from an endpoint to a client. Providers yield Chunk or Complete; dispatch adds the frame.

A provider's stream is `Chunk* ` (streaming) or one `Complete` (not streaming), already normalised:
five finish reasons, integer indexes, tool calls with ids, `reasoning` (never `reasoning_content`),
no JSON from the upstream's envelope. Order out of dispatch: `Committed`, then Chunk* or Complete,
then `Finished`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from ionrouter.errors import FailureClass
from ionrouter.schema.json import loads
from ionrouter.schema.request import Kind
from ionrouter.schema.usage import Cost, Usage

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "error"]
# Why an attempt was made: for the caller, for the caller beside a slow one, to compare, to measure.
AttemptRole = Literal["main", "hedge", "shadow", "probe"]


class ChoiceDelta(Struct, frozen=True):
    """One choice's part of a chunk. For kind "completions" `delta` is {"text": ...}."""

    index: int
    delta: dict[str, Any]
    finish_reason: FinishReason | None = None
    native_finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None
    stop_sequence: str | None = None  # the caller's stop string that ended it, where the upstream says so
    prompt_logprobs: list[Any] | None = None  # vLLM's, of a prompt's tokens; in whole answers only


class Chunk(Struct, frozen=True):
    """One streamed piece. `usage` comes with the last one, often with no choices."""

    choices: tuple[ChoiceDelta, ...] = ()
    usage: Usage | None = None
    upstream_id: str | None = None
    service_tier: str | None = None
    upstream_model: str | None = None  # what the upstream says it ran

    @property
    def commits(self) -> bool:
        """Whether a client could use it: content, reasoning, refusal, audio, a tool call, a legal finish."""
        for choice in self.choices:  # noqa: SIM110 (asked of every event; a generator costs twice)
            if _commits(choice.finish_reason, choice.delta):
                return True
        return False


_CONTENT_KEYS = ("content", "text", "reasoning", "reasoning_details", "refusal", "audio", "images")


def _commits(finish_reason: FinishReason | None, said: Mapping[str, Any]) -> bool:
    if finish_reason is not None and finish_reason != "error":
        return True
    for key in _CONTENT_KEYS:
        if said.get(key):
            return True
    for call in said.get("tool_calls") or ():
        function = call.get("function") or {}
        if function.get("name") or function.get("arguments"):
            return True
    return False


class Choice(Struct, frozen=True):
    """One choice of a whole answer. For kind "completions" `message` is {"text": ...}."""

    index: int
    message: dict[str, Any]
    finish_reason: FinishReason | None
    native_finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None
    stop_sequence: str | None = None
    prompt_logprobs: list[Any] | None = None
    order: tuple[str | int, ...] = ()  # of a mixed turn, where it is known (schema/turn_order.py)


class Complete(Struct, frozen=True):
    """A whole answer from an upstream that was asked not to stream (`data` for embeddings and rerank)."""

    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None
    upstream_id: str | None = None
    service_tier: str | None = None
    data: tuple[dict[str, Any], ...] = ()
    search_units: int | None = None  # what rerankers bill by, where they say so
    upstream_model: str | None = None

    @property
    def commits(self) -> bool:
        """Whether it is an answer: data, content, a tool call, or a legal finish."""
        for choice in self.choices:
            if _commits(choice.finish_reason, choice.message):
                return True
        return bool(self.data)


class AttemptRecord(Struct, frozen=True):
    """One try at one endpoint, for statistics and the generation record. Durations in seconds."""

    endpoint_id: str
    model_id: str
    provider_name: str
    started_at: float  # wall clock, seconds since the epoch
    stream: bool
    duration_s: float
    ttft_s: float | None = None  # attempt start to commit; None when the upstream did not stream
    status: int | None = None
    failure: FailureClass | None = None  # None: success
    after_commit: bool = False
    message: str = ""
    usage: Usage | None = None
    cost: Cost = field(default_factory=Cost)
    max_gap_s: float | None = None  # largest gap between tokens
    is_usage_estimated: bool = False  # the upstream reported none, or not the last: characters / 4
    prompt_tokens: int = 0  # estimated at arrival, for attempts without usage
    finish_reason: FinishReason | None = None  # of the choice that ended last
    native_finish_reason: str | None = None
    upstream_id: str | None = None  # the upstream's own name for its answer
    service_tier: str | None = None
    upstream_model: str | None = None  # the upstream's own word for the model that answered
    is_unpriced: bool = False  # nobody said what the endpoint costs: `cost` leaves it out
    queue_s: float | None = None  # waited before work on it began; None: not measured
    num_tool_calls: int = 0  # of a whole answer
    num_bad_tool_calls: int = 0  # of these: no tool of the request's, or arguments that are no JSON object
    subject: str = ""  # whose statistics it counts in; "": its endpoint_id's
    role: AttemptRole = "main"  # "shadow" and "probe" belong to no RequestRecord: users never see them

    @property
    def ok(self) -> bool:
        return self.failure is None


class SentBody(Struct):
    """What one attempt sent upstream, for a caller that wants to see it. Its client writes `body`."""

    model_id: str
    provider_name: str
    body: bytes | None = None  # JSON without the server's keys; None: nothing was sent

    def told(self) -> dict[str, Any]:
        """A chunk's or an event's `debug`."""
        return {"echo_upstream_body": loads(self.body or b"{}")}


class Committed(Struct, frozen=True):
    """The answer is decided: this endpoint's. Everything a response header needs."""

    endpoint_id: str
    model_id: str
    provider_name: str
    reason: str  # e.g. "score 0.00021, first pick of 3" or "fallback after together/...: 503"
    attempt: int  # 1-based; 0: a kept answer, for which nobody was asked
    dropped: tuple[str, ...] = ()  # request parameters this endpoint does not take
    notes: tuple[str, ...] = ()  # what the router changed in the request
    sent: tuple[SentBody, ...] = ()  # by every attempt so far, where the caller wants to see it


class Finished(Struct, frozen=True):
    """The end of a good answer, with what it took."""

    usage: Usage
    cost: Cost
    attempts: tuple[AttemptRecord, ...]
    ttft_s: float | None  # arrival to commit, fallbacks included
    is_usage_estimated: bool = False


class Source(Struct, frozen=True):
    """Which request a kept answer was given to first, and how that answer ended."""

    id: str
    finish_reason: FinishReason | None = None
    native_finish_reason: str | None = None
    service_tier: str | None = None


class RequestRecord(Struct, frozen=True):
    """One request from arrival to its end, however it ended; `status` 499 when the client left."""

    id: str
    kind: Kind
    requested_model: str
    stream: bool
    started_at: float  # wall clock, seconds since the epoch
    duration_s: float
    status: int  # what the client saw, or would have seen had the headers not gone out yet
    attempts: tuple[AttemptRecord, ...] = ()
    served_model: str | None = None  # None: nothing was committed
    served_endpoint: str | None = None
    served_provider: str | None = None
    is_cancelled: bool = False
    ttft_s: float | None = None  # arrival to commit, fallbacks included
    usage: Usage = field(default_factory=Usage)  # of the answer; failed attempts keep their own
    cost: Cost = field(default_factory=Cost)  # of all attempts together
    is_usage_estimated: bool = False
    key_id: str | None = None
    session_id: str | None = None
    error: str | None = None
    route: str | None = None  # why this endpoint served it, as in Committed.reason
    source: Source | None = None  # of the kept answer that it was given; None: somebody was asked


class Observer(Protocol):
    """Hears of every request once, at its end. Must not block; what it raises is logged and dropped."""

    def observe(self, record: RequestRecord) -> None: ...


class TextRun(Struct, frozen=True):
    """Chunks that were read together and differ in nothing but the text of their one choice.

    `pattern` is such a chunk; `texts` stand in its place, one after the other, under `key` of its delta.
    `literals` are the same texts as JSON strings.
    """

    pattern: Chunk
    key: str
    texts: tuple[str, ...]
    literals: tuple[bytes, ...]

    @property
    def commits(self) -> bool:
        return any(self.texts)

    def chunks(self) -> Iterator[Chunk]:
        """The chunks themselves."""
        return (self.chunk(text) for text in self.texts)

    def chunk(self, text: str) -> Chunk:
        """One of them."""
        (choice,) = self.pattern.choices
        return replace(self.pattern, choices=(replace(choice, delta={**choice.delta, self.key: text}),))


ProviderEvent = Chunk | Complete
Event = Committed | Chunk | Complete | Finished
# What was read together travels together: one step of every stage for all of it, not one for each event.
ProviderBatch = Sequence[ProviderEvent | TextRun]
Batch = Sequence[Event | TextRun]
# Takes one event of a known pattern at once, told its text and that as JSON; or takes nothing: False.
Lane = Callable[[str, bytes], bool]


class Taker(Protocol):
    """Whoever is served, and may be given what comes while it waits: without waking it, in the same call."""

    def take(self, batch: ProviderBatch) -> bool:
        """Take a batch at once; or take nothing of it, and it is yielded to who can wait: False."""
        ...

    def lane(self, pattern: Chunk) -> Lane | None:
        """Say how to take a text that comes alone in such a chunk, once `take` took one; None: as before."""
        ...


async def flat(batches: AsyncIterator[Batch]) -> AsyncIterator[Event]:
    """One event after the other, for who does not care what came together. Closing it closes `batches`."""
    async with aclosing(batches) as source:  # type: ignore[type-var]
        async for batch in source:
            for event in batch:
                if isinstance(event, TextRun):
                    for chunk in event.chunks():
                        yield chunk
                else:
                    yield event
