"""POST messages, in Anthropic's shape: the conversation becomes a chat request, the answer a message."""

from __future__ import annotations

import time

from aiohttp import web

from ionrouter.api.inference import Parsed, freeze, read_body
from ionrouter.api.responses import json_response
from ionrouter.api.serving import Ask, Surface, serve
from ionrouter.api.sse import named_event
from ionrouter.api.state import EDGE, PATHS
from ionrouter.schema.messages_answer import MessagesAnswer
from ionrouter.schema.messages_request import MessagesRequest
from ionrouter.schema.request import InferenceRequest
from ionrouter.schema.validation import validated

ESTIMATED = "input_tokens is estimated: four characters a token, pictures and files not counted"
SURFACE = Surface(name="messages", encode=named_event, heartbeat=named_event({"type": "ping"}))


async def messages(request: web.Request) -> web.StreamResponse:
    parsed, chat, wanted = await read_messages(request)
    answer = MessagesAnswer(
        wanted.id,
        wanted.model,
        tuple(parsed.stop_sequences or ()),
        hides_reasoning=chat.hides_reasoning,
        omits_thoughts=parsed.omits_thoughts,
        num_in=wanted.prompt_tokens,
    )
    return await serve(request, Ask(wanted, answer, (*chat.ignored, *parsed.ignored)), SURFACE)


async def read_messages(request: web.Request) -> tuple[MessagesRequest, Parsed, InferenceRequest]:
    """Validate a body, once as it is and once as a chat; raises RequestError with the caller's own names."""
    arrived_at = time.monotonic()
    body = await read_body(request)
    parsed = validated(MessagesRequest, body)
    request[PATHS] = MessagesRequest.paths(body)
    return parsed, *freeze(request, parsed.to_chat(body), "chat", arrived_at)


async def count_tokens(request: web.Request) -> web.Response:
    """Say how many tokens a request would have, asking nobody for an answer; an estimate is called one."""
    _, _, wanted = await read_messages(request)
    counted = await request.app[EDGE].router.count_prompt(wanted)
    if counted is not None:
        return json_response({"input_tokens": counted})
    return json_response({"input_tokens": wanted.prompt_tokens}, headers={"X-Ionrouter-Notes": ESTIMATED})
