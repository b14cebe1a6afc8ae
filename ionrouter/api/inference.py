"""POST chat/completions and completions: JSON in, a router's request and an AnswerFrame out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from aiohttp import hdrs, web

from ionrouter.api.body import read_json
from ionrouter.api.serving import Ask, Surface, serve
from ionrouter.api.sse import COMMENT, DONE, event
from ionrouter.api.state import EDGE, GENERATION_ID, KEY, TRACE
from ionrouter.errors import RequestError
from ionrouter.schema.allowed_tools import with_allowed_tools
from ionrouter.schema.answers import AnswerFrame
from ionrouter.schema.chat import ChatRequest
from ionrouter.schema.common import MAX_SESSION_ID
from ionrouter.schema.completions import CompletionRequest
from ionrouter.schema.embeddings import EmbeddingsRequest
from ionrouter.schema.presets import with_preset
from ionrouter.schema.request import Client, InferenceRequest, Kind
from ionrouter.schema.rerank import RerankRequest
from ionrouter.schema.spans import RequestSpan
from ionrouter.schema.validation import validated

SURFACE = Surface(name="chat", encode=event, heartbeat=COMMENT, end=DONE, repeats_chunks=True)
Parsed = ChatRequest | CompletionRequest | EmbeddingsRequest | RerankRequest
MODELS: dict[Kind, type[Parsed]] = {
    "chat": ChatRequest,
    "completions": CompletionRequest,
    "embeddings": EmbeddingsRequest,
    "rerank": RerankRequest,
}


async def chat_completions(request: web.Request) -> web.StreamResponse:
    return await serve(request, await read_request(request, "chat"), SURFACE)


async def completions(request: web.Request) -> web.StreamResponse:
    return await serve(request, await read_request(request, "completions"), SURFACE)


async def read_request(request: web.Request, kind: Kind) -> Ask:
    """Validate and freeze a request; raises RequestError naming the field at fault."""
    arrived_at = time.monotonic()
    body = await read_body(request)
    parsed, wanted = freeze(request, body, kind, arrived_at)
    frame = AnswerFrame(
        wanted.id, kind, int(time.time()), wanted.model, hides_reasoning=parsed.hides_reasoning
    )
    return Ask(wanted, frame, parsed.ignored)


async def read_body(request: web.Request) -> Any:
    """Read the request's JSON, bounded by the settings."""
    return await read_json(request, request.app[EDGE].settings.max_body_bytes)


def freeze(
    request: web.Request, body: Mapping[str, Any], kind: Kind, arrived_at: float
) -> tuple[Parsed, InferenceRequest]:
    """Validate a body of our own kinds and make of it what the router takes."""
    edge = request.app[EDGE]
    body = with_allowed_tools(with_preset(body, edge.router.table.presets))
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
        longest=parsed.longest(),
        client=_client(request, body.get("user"), None if edge.tracing is None else request.get(TRACE)),
    )
    return parsed, wanted


def _client(request: web.Request, user: Any, span: RequestSpan | None) -> Client:
    headers = request.headers
    return Client(
        user_agent=headers.get(hdrs.USER_AGENT),
        referer=headers.get("HTTP-Referer") or headers.get(hdrs.REFERER),
        title=headers.get("X-OpenRouter-Title") or headers.get("X-Title"),
        user=user if isinstance(user, str) else None,
        span=span,
    )


def _session_id(request: web.Request) -> str | None:
    session = request.headers.get("x-session-id")
    if session is not None and len(session) > MAX_SESSION_ID:
        raise RequestError(
            f"x-session-id: should have at most {MAX_SESSION_ID} characters", param="x-session-id"
        )
    return session or None
