"""POST chat/completions and completions: one request in, the router's events out, streamed or whole."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import structlog
from aiohttp import web

from ionrouter.api.body import read_json
from ionrouter.api.errors import error_body
from ionrouter.api.pump import EventPump
from ionrouter.api.responses import header_text, json_response, plain
from ionrouter.api.sse import COMMENT, DONE, ClientGone, SseResponse, event
from ionrouter.api.state import EDGE, GENERATION_ID, KEY, ROUTED, Edge
from ionrouter.errors import IonrouterError, RequestError
from ionrouter.schema.answers import AnswerFrame
from ionrouter.schema.assemble import as_chunk
from ionrouter.schema.chat import ChatRequest
from ionrouter.schema.completions import CompletionRequest
from ionrouter.schema.events import Chunk, Committed, Complete, Event, Finished
from ionrouter.schema.request import InferenceRequest, Kind
from ionrouter.schema.validation import validated

_log = structlog.get_logger(__name__)

MODELS: dict[Kind, type[ChatRequest] | type[CompletionRequest]] = {
    "chat": ChatRequest,
    "completions": CompletionRequest,
}
MAX_SESSION_ID = 256


async def chat_completions(request: web.Request) -> web.StreamResponse:
    return await _serve(request, "chat")


async def completions(request: web.Request) -> web.StreamResponse:
    return await _serve(request, "completions")


@dataclass(slots=True)
class Ask:
    """One request being served: what is wanted, the frame of its answer, and what to tell of its route."""

    wanted: InferenceRequest
    frame: AnswerFrame
    ignored: tuple[str, ...]  # legacy fields that are accepted without effect
    explanation: Any = None  # asked for with `ionrouter: {explain: true}`
    committed: Committed | None = None

    def commit(self, committed: Committed) -> dict[str, str]:
        """Note who serves; returns the headers that say so, and what was left out, without being asked."""
        self.committed = committed
        self.frame.commit(committed)
        headers = {"X-Ionrouter-Route": header_text(f"{committed.endpoint_id}; {committed.reason}")}
        if dropped := self.dropped:
            headers["X-Ionrouter-Dropped"] = header_text(", ".join(dropped))
        return headers

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
        }
        return report if self.explanation is None else {**report, "explanation": self.explanation}


async def _serve(request: web.Request, kind: Kind) -> web.StreamResponse:
    edge = request.app[EDGE]
    ask = await read_request(request, kind)
    if ask.wanted.overrides.explain:
        ask.explanation = plain(edge.router.explain(ask.wanted))  # before it is served, as select will see it
    request[ROUTED] = True
    async with EventPump(edge.router.stream(ask.wanted)) as pump:
        with edge.in_flight.track(pump), edge.metrics.in_flight.track_inprogress():
            if ask.wanted.stream:
                return await _Stream(request, edge, pump, ask).serve()
            return await _whole(pump, ask)


async def read_request(request: web.Request, kind: Kind) -> Ask:
    """Validate and freeze a request; raises RequestError naming the field at fault."""
    arrived_at = time.monotonic()
    edge = request.app[EDGE]
    body = await read_json(request, edge.settings.max_body_bytes)
    parsed = validated(MODELS[kind], body)
    key = request.get(KEY)
    wanted = parsed.to_request(
        body,
        kind=kind,
        request_id=request[GENERATION_ID],
        characters=parsed.num_characters(),
        modalities=parsed.input_modalities(),
        session_id=_session_id(request),
        key_id=key.hash if key else None,
        arrived_at=arrived_at,
    )
    frame = AnswerFrame(
        wanted.id, kind, int(time.time()), wanted.model, hides_reasoning=parsed.hides_reasoning
    )
    return Ask(wanted, frame, parsed.ignored)


def _session_id(request: web.Request) -> str | None:
    session = request.headers.get("x-session-id")
    if session is not None and len(session) > MAX_SESSION_ID:
        raise RequestError(
            f"x-session-id: should have at most {MAX_SESSION_ID} characters", param="x-session-id"
        )
    return session or None


async def _whole(pump: EventPump, ask: Ask) -> web.Response:
    """Wait for the end, then answer; a failure half way still has a real status."""
    complete: Complete | None = None
    finished: Finished | None = None
    headers: dict[str, str] = {}
    while (batch := await pump.take()) is not None:
        for item in batch:
            match item:
                case Committed():
                    headers = ask.commit(item)
                case Complete():
                    complete = item
                case Finished():
                    finished = item
    if complete is None or finished is None:
        raise RuntimeError("the router's events ended without Complete and Finished")
    body = ask.frame.whole(complete, finished)
    if ask.explanation is not None:
        body["ionrouter"] = ask.report()
    return json_response(body, headers=headers)


class _Stream:
    """One streamed answer: silent until there is something to say, then events, then [DONE] or one error."""

    def __init__(self, request: web.Request, edge: Edge, pump: EventPump, ask: Ask) -> None:
        self._sse = SseResponse(request)
        self._pump = pump
        self._ask = ask
        self._first_comment_s = edge.router.table.settings.heartbeat_after_s
        self._comment_every_s = edge.settings.heartbeat_interval_s
        self._reports_route = ask.explanation is not None

    async def serve(self) -> web.StreamResponse:
        try:
            await self._relay()
        except ClientGone as gone:
            _log.debug("client_left", generation_id=self._ask.wanted.id, reason=str(gone))
        except Exception as error:
            if not self._sse.has_started:
                raise
            await self._fail(error)
        return self._sse.response

    async def _relay(self) -> None:
        while (batch := await self._pump.take(self._patience_s())) is not None:
            if not batch:
                self._sse.set_headers({"X-Ionrouter-Route": "pending"})
                await self._sse.write([COMMENT])
            elif parts := [part for item in batch if (part := self._encode(item))]:
                await self._sse.write(parts)
        await self._sse.end()

    def _patience_s(self) -> float:
        return self._comment_every_s if self._sse.has_started else self._first_comment_s

    def _encode(self, item: Event) -> bytes:
        match item:
            case Committed():
                self._reports_route |= self._sse.has_started  # the headers left before the route was known
                self._sse.set_headers(self._ask.commit(item))
                return b""
            case Chunk():
                return event(self._ask.frame.chunk(item)) if item.choices else b""
            case Complete():
                return event(self._ask.frame.chunk(as_chunk(item)))
            case Finished():
                return self._finish(item)

    def _finish(self, finished: Finished) -> bytes:
        last = self._ask.frame.usage_chunk(finished)
        if self._reports_route:
            last["ionrouter"] = self._ask.report()
        return event(last) + DONE

    async def _fail(self, error: Exception) -> None:
        """End a stream that has begun: one error chunk, no [DONE]."""
        if not isinstance(error, IonrouterError):
            _log.exception("stream_crashed", generation_id=self._ask.wanted.id)
        try:
            await self._sse.write([event(self._ask.frame.error_chunk(error_body(error).error()))])
            await self._sse.end()
        except ClientGone as gone:
            _log.debug("client_left", generation_id=self._ask.wanted.id, reason=str(gone))
