"""POST rerank: documents ordered by a model that an endpoint serves."""

from __future__ import annotations

import time

from aiohttp import web

from ionrouter.api.inference import SURFACE, freeze, read_body
from ionrouter.api.serving import Ask, serve
from ionrouter.schema.rerank import RerankAnswer, RerankRequest


async def rerank(request: web.Request) -> web.StreamResponse:
    arrived_at = time.monotonic()
    parsed, wanted = freeze(request, await read_body(request), "rerank", arrived_at)
    assert isinstance(parsed, RerankRequest)
    answer = RerankAnswer(
        wanted.id,
        wanted.model,
        tuple(parsed.documents),
        parsed.top_n,
        returns_documents=parsed.return_documents is not False,
    )
    return await serve(request, Ask(wanted, answer, parsed.ignored), SURFACE)
