"""POST messages, in Anthropic's shape: the conversation becomes a chat request, the answer a message."""

from __future__ import annotations

import time

from aiohttp import web

from ionrouter.api.inference import freeze, read_body
from ionrouter.api.serving import Ask, Surface, serve
from ionrouter.api.sse import named_event
from ionrouter.schema.messages_answer import MessagesAnswer
from ionrouter.schema.messages_request import MessagesRequest
from ionrouter.schema.validation import validated

SURFACE = Surface(encode=named_event, heartbeat=named_event({"type": "ping"}))


async def messages(request: web.Request) -> web.StreamResponse:
    arrived_at = time.monotonic()
    body = await read_body(request)
    parsed = validated(MessagesRequest, body)
    chat, wanted = freeze(request, parsed.to_chat(body), "chat", arrived_at)
    answer = MessagesAnswer(
        wanted.id,
        wanted.model,
        tuple(parsed.stop_sequences or ()),
        hides_reasoning=chat.hides_reasoning,
        omits_thoughts=parsed.omits_thoughts,
        num_in=wanted.prompt_tokens,
    )
    return await serve(request, Ask(wanted, answer, (*chat.ignored, *parsed.ignored)), SURFACE)
