"""POST responses, in OpenAI's shape: items become a chat request, the answer a response and its events."""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web

from ionrouter.api.inference import Parsed, freeze, read_body
from ionrouter.api.serving import Ask, Surface, serve
from ionrouter.api.sse import COMMENT, DONE, event
from ionrouter.api.state import PATHS
from ionrouter.schema.request import InferenceRequest
from ionrouter.schema.responses_answer import ResponsesAnswer
from ionrouter.schema.responses_request import ResponsesRequest
from ionrouter.schema.validation import validated

SURFACE = Surface(
    name="responses", encode=event, heartbeat=COMMENT, end=DONE, end_of_failure=DONE, metadata_in="response"
)


async def responses(request: web.Request) -> web.StreamResponse:
    body, parsed, chat, wanted = await read_responses(request)
    answer = ResponsesAnswer(
        wanted.id,
        int(time.time()),
        wanted.model,
        parsed.echo(body),
        hides_reasoning=chat.hides_reasoning,
        seals_thoughts=parsed.seals_thoughts,
        tools=parsed.toolbox,
    )
    return await serve(request, Ask(wanted, answer, (*chat.ignored, *parsed.ignored)), SURFACE)


async def read_responses(request: web.Request) -> tuple[Any, ResponsesRequest, Parsed, InferenceRequest]:
    """Read a body and validate it, once as it is and once as a chat; raises RequestError with their names."""
    arrived_at = time.monotonic()
    body = await read_body(request)
    parsed = validated(ResponsesRequest, body)
    request[PATHS] = ResponsesRequest.paths(body)
    return body, parsed, *freeze(request, parsed.to_chat(body), "chat", arrived_at)
