"""Serves one request over the router's events, streamed or whole. Knows no surface's shapes or words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from aiohttp import web

from ionrouter.alarm import Alarm
from ionrouter.api import kept, large_answer
from ionrouter.api.envelopes import in_callers_words
from ionrouter.api.errors import error_body
from ionrouter.api.responses import header_text, json_response, plain
from ionrouter.api.route_metadata import NAME, RouteMetadata, metadata_for
from ionrouter.api.run import Run
from ionrouter.api.sse import ClientGone, SseResponse
from ionrouter.api.state import EDGE, METADATA, ROUTED, Edge
from ionrouter.balancing.options import unknown_options
from ionrouter.errors import IonrouterError
from ionrouter.schema import json
from ionrouter.schema.assemble import as_chunk
from ionrouter.schema.errors import INTERNAL_ERROR, ErrorBody
from ionrouter.schema.events import (
    Batch,
    Chunk,
    Committed,
    Complete,
    Event,
    Finished,
    Lane,
    ProviderBatch,
    SentBody,
    TextRun,
)
from ionrouter.schema.healing import healed_answer, wants_healing
from ionrouter.schema.plugins import RESPONSE_HEALING
from ionrouter.schema.request import InferenceRequest

_log = structlog.get_logger(__name__)

Piece = Mapping[str, Any]
PROBE = "\x01text\x01"  # stands where an event's text will


class Answer(Protocol):
    """One answer in the words of its surface."""

    @property
    def left_out(self) -> frozenset[str]:
        """Parts of the answer so far that the surface has no form for, by chat's names."""
        ...

    def commit(self, committed: Committed) -> None:
        """Note who serves."""
        ...

    def shown(self, sent: Sequence[SentBody]) -> Iterable[Piece]:
        """The stream's events for what was sent upstream, before all else."""
        ...

    def pieces(self, chunk: Chunk) -> Iterable[Piece]:
        """The stream's events for a chunk."""
        ...

    def finish(self, finished: Finished, report: Piece | None = None) -> Iterable[Piece]:
        """The stream's last events; `report` is the `ionrouter` object, if it must be told here."""
        ...

    def fail(self, error: ErrorBody) -> Iterable[Piece]:
        """The last events of a stream that broke."""
        ...

    def whole(self, complete: Complete, finished: Finished) -> dict[str, Any]:
        """The body of a whole answer."""
        ...


@dataclass(frozen=True, slots=True)
class Surface:
    """How a surface puts events on the wire."""

    name: str  # of the words it speaks: chat's, messages', responses'
    encode: Callable[[Piece], bytes]
    heartbeat: bytes
    end: bytes = b""  # after a good stream's last event
    end_of_failure: bytes = b""
    repeats_chunks: bool = False  # chunks that differ in their text alone become events that do
    metadata_in: str | None = None  # the field of a last event that takes its metadata; None: the event

    def with_metadata(self, pieces: Iterable[Piece], metadata: Piece) -> list[Piece]:
        """Add `openrouter_metadata`, if asked for, to the last of some events."""
        listed = list(pieces)
        if listed and metadata:
            last, field = listed[-1], self.metadata_in
            more = metadata if field is None else {field: {**last[field], **metadata}}
            listed[-1] = {**last, **more}
        return listed


@dataclass(slots=True)
class Ask:
    """One request being served: what is wanted, its answer, and what to tell of its route."""

    wanted: InferenceRequest
    answer: Answer
    ignored: tuple[str, ...] = ()  # fields that are accepted without effect
    explanation: Any = None  # asked for with `ionrouter: {explain: true}`
    committed: Committed | None = None
    metadata: RouteMetadata | None = None  # asked for with a header
    notes: tuple[str, ...] = ()  # what was changed in the request or the answer
    cache_headers: Mapping[str, str] | None = None  # where the response cache was asked for

    def commit(self, committed: Committed) -> dict[str, str]:
        """Note who serves; returns the headers that say so, and what was left out, without being asked."""
        self.committed, self.notes = committed, committed.notes
        self.answer.commit(committed)
        headers = {"X-Ionrouter-Route": header_text(f"{committed.endpoint_id}; {committed.reason}")}
        if dropped := self.dropped:
            headers["X-Ionrouter-Dropped"] = header_text(", ".join(dropped))
        if self.cache_headers is not None:
            headers |= self.cache_headers
        return headers | self.note_header()

    def note_plan(self, explanation: Any) -> None:
        """Keep the plan that is followed, a dataclass."""
        self.explanation = plain(explanation)

    def note_header(self) -> dict[str, str]:
        return {"X-Ionrouter-Notes": header_text("; ".join(notes))} if (notes := self.all_notes) else {}

    @property
    def all_notes(self) -> tuple[str, ...]:
        """What was changed, and what of the answer cannot be said on its surface."""
        if not (left_out := self.answer.left_out):
            return self.notes
        return (*self.notes, f"left out, for this API has no form for it: {', '.join(sorted(left_out))}")

    def mend(self, complete: Complete) -> Complete:
        """Make JSON parseable again, if the caller wants that and it needs it."""
        if not wants_healing(self.wanted):
            return complete
        healed, is_changed = healed_answer(complete)
        if is_changed:
            self.notes += (f"{RESPONSE_HEALING}: the JSON was mended",)
        return healed

    def route_metadata(self, finished: Finished) -> dict[str, Any]:
        """The answer's `openrouter_metadata`, if asked for, under its name."""
        if self.metadata is None or self.committed is None:
            return {}
        return {NAME: self.metadata.of_answer(self.committed, finished, self.notes)}

    @property
    def dropped(self) -> tuple[str, ...]:
        return (*(self.committed.dropped if self.committed else ()), *self.ignored)

    def report(self) -> dict[str, Any]:
        """The `ionrouter` object of an answer."""
        assert self.committed is not None  # nothing finishes before it commits
        report: dict[str, Any] = {
            "endpoint": self.committed.endpoint_id,
            "reason": self.committed.reason,
            "attempt": self.committed.attempt,
            "dropped": list(self.dropped),
            **({"notes": list(notes)} if (notes := self.all_notes) else {}),
        }
        return report if self.explanation is None else {**report, "explanation": self.explanation}


async def serve(request: web.Request, ask: Ask, surface: Surface) -> web.StreamResponse:
    """Route a request and answer it in its surface's words."""
    edge = request.app[EDGE]
    ask.metadata = metadata_for(request, ask.wanted)
    request[ROUTED] = True
    ask.ignored += unknown_options(ask.wanted, edge.router.table)
    visit = await _visit(request, ask, surface) if kept.may_ask(request, ask.wanted) else None
    try:
        stream = _Stream(request, edge, ask, surface) if ask.wanted.stream else None
        tell = ask.note_plan if ask.wanted.overrides.explain else None
        source = edge.router.batches if visit is None else visit.batches
        run = Run(source(ask.wanted, stream, tell))
        edge.in_flight.add(run)
        try:
            if stream is not None:
                return await stream.serve(run)
            async with run as batches:
                events = [event async for batch in batches for event in batch]
            return await _whole(request, events, ask)
        finally:
            edge.in_flight.discard(run)
    except IonrouterError as error:
        if ask.metadata is not None:
            request[METADATA] = ask.metadata.of_error(error, ask.committed)
        raise


async def _visit(request: web.Request, ask: Ask, surface: Surface) -> kept.Visit | None:
    """Look into the response cache, where the request wants that."""
    visit = await kept.visit(request, ask.wanted, surface.name)
    if visit is not None:
        ask.cache_headers = visit.headers
        if visit.found is not None:
            ask.metadata = None  # nothing was routed
    return visit


async def _whole(request: web.Request, events: Iterable[Event | TextRun], ask: Ask) -> web.StreamResponse:
    """Answer after the end; a failure half way still has a real status."""
    complete: Complete | None = None
    finished: Finished | None = None
    headers: dict[str, str] = {}
    for item in events:
        match item:
            case Committed():
                headers = ask.commit(item)
            case Complete():
                complete = item
            case Finished():
                finished = item
    if complete is None or finished is None:
        raise RuntimeError("the router's events ended without Complete and Finished")
    body = ask.answer.whole(ask.mend(complete), finished)
    if ask.explanation is not None:
        body["ionrouter"] = ask.report()
    body |= ask.route_metadata(finished)
    headers |= ask.note_header()
    if (rows := large_answer.rows_of(body)) is not None:
        return await large_answer.send(request, body, rows, headers)
    return json_response(body, headers=headers)


class _Stream:
    """One streamed answer: silent until there is something to say, then events, then the end or one error."""

    def __init__(self, request: web.Request, edge: Edge, ask: Ask, surface: Surface) -> None:
        self._sse, self._request = SseResponse(request), request
        self._ask = ask
        self._surface = surface
        self._first_heartbeat_s = edge.router.table.settings.heartbeat_after_s
        self._heartbeat_every_s = edge.settings.heartbeat_interval_s
        self._silence = Alarm(self._beat)
        self._beating: asyncio.Task[None] | None = None
        self._reports_route = ask.wanted.overrides.explain
        self._crash: Exception | None = None  # of `take`
        self._pattern: Chunk | None = None  # of the run encoded last
        self._around_text = (b"", b"")

    async def serve(self, run: Run) -> web.StreamResponse:
        try:
            async with run as batches:
                await self._relay(batches)
        except ClientGone as gone:
            _log.debug("client_left", request=self._ask.wanted.id, reason=str(gone))
        except Exception as error:
            if not self._sse.has_started:
                raise
            await self._quiet()
            await self._fail(error)
        finally:
            self._silence.close()
            del self._silence  # each holds the other
            if self._beating is not None:
                self._beating.cancel()
        return self._sse.response

    def take(self, batch: ProviderBatch) -> bool:
        """Write a batch at once, if the client is ready for it; else `_relay` will get it, and may wait."""
        if self._beating is not None or not self._sse.is_ready:
            return False
        try:
            data = b"".join(map(self._encode, batch))
        except Exception as error:  # what was encoded before it is not encoded again
            self._crash = error
            return False
        if data:
            self._sse.write_now(data)
            self._silence.set(self._heartbeat_every_s)
        return True

    def lane(self, pattern: Chunk) -> Lane | None:
        """Write what `take` would for a text of the pattern that was encoded last."""
        if pattern is not self._pattern:
            return None
        (before, after), every_s = self._around_text, self._heartbeat_every_s
        write_now, silence = self._sse.write_now, self._silence
        time = silence.loop.time

        def write(_: str, literal: bytes) -> bool:
            if self._beating is not None or not write_now(before + literal + after):
                return False
            silence.deadline = time() + every_s  # it was set by what `take` took before
            return True

        return write

    async def _relay(self, batches: AsyncIterator[Batch]) -> None:
        self._silence.set(self._first_heartbeat_s)
        async for batch in batches:
            if self._crash is not None:
                raise self._crash
            if data := b"".join(map(self._encode, batch)):
                if self._beating is not None:
                    await self._quiet()
                self._silence.set(None)
                await self._sse.write((data,))
                self._silence.set(self._heartbeat_every_s)
        await self._quiet()
        await self._sse.end()

    async def _quiet(self) -> None:
        """Let no heartbeat come between: a slow client may be taking one still."""
        if self._beating is not None:
            await self._beating
            self._beating = None
        self._silence.set(None)

    def _beat(self) -> None:
        self._beating = asyncio.create_task(self._send_heartbeat(), name="heartbeat")

    async def _send_heartbeat(self) -> None:
        self._sse.set_headers({"X-Ionrouter-Route": "pending", **(self._ask.cache_headers or {})})
        try:
            await self._sse.write([self._surface.heartbeat])
        except ClientGone:
            return  # the next write finds the same, or the connection's end cancels who would write
        self._silence.set(self._heartbeat_every_s)

    def _encode(self, item: Event | TextRun) -> bytes:
        match item:
            case TextRun():
                return self._encoded_run(item)
            case Committed():
                self._reports_route |= self._sse.has_started  # the headers left before the route was known
                self._sse.set_headers(self._ask.commit(item))
                return self._encoded(self._ask.answer.shown(item.sent)) if item.sent else b""
            case Chunk():
                return self._encoded(self._ask.answer.pieces(item))
            case Complete():
                return self._encoded(self._ask.answer.pieces(as_chunk(item)))
            case Finished():
                # What was left out is known too late for a header.
                is_told = self._reports_route or self._ask.answer.left_out
                report = self._ask.report() if is_told else None
                pieces = self._ask.answer.finish(item, report)
                told = self._surface.with_metadata(pieces, self._ask.route_metadata(item))
                return self._encoded(told) + self._surface.end

    def _encoded_run(self, run: TextRun) -> bytes:
        """One event a text; where they differ in the text alone, the rest of them is made once."""
        if not self._surface.repeats_chunks:
            return b"".join(self._encoded(self._ask.answer.pieces(chunk)) for chunk in run.chunks())
        if run.pattern is not self._pattern:
            whole = self._encoded(self._ask.answer.pieces(run.chunk(PROBE)))
            self._around_text = whole.partition(json.dumps(PROBE))[::2]
            self._pattern = run.pattern
        before, after = self._around_text
        return before + (after + before).join(run.literals) + after

    def _encoded(self, pieces: Iterable[Piece]) -> bytes:
        return b"".join(map(self._surface.encode, pieces))

    async def _fail(self, error: Exception) -> None:
        """End a stream that has begun: one error in the surface's words."""
        if not isinstance(error, IonrouterError):
            _log.exception("stream_crashed", request=self._ask.wanted.id)
        try:
            body = in_callers_words(self._request, error_body(error))
            metadata, more = self._ask.metadata, {}
            if metadata is not None and body.status != INTERNAL_ERROR.status:  # what is masked stays masked
                more = {NAME: metadata.of_error(error, self._ask.committed)}
            told = self._encoded(self._surface.with_metadata(self._ask.answer.fail(body), more))
            await self._sse.write([told, self._surface.end_of_failure])
            await self._sse.end()
        except ClientGone as gone:
            _log.debug("client_left", request=self._ask.wanted.id, reason=str(gone))
