"""POST embeddings, and the models that give them."""

from __future__ import annotations

import time

from aiohttp import web

from ionrouter.api import cards
from ionrouter.api.inference import SURFACE, freeze, read_body
from ionrouter.api.offers import offered
from ionrouter.api.responses import json_response
from ionrouter.api.serving import Ask, serve
from ionrouter.api.state import EDGE
from ionrouter.schema.embeddings import EmbeddingsAnswer, EmbeddingsRequest


async def embeddings(request: web.Request) -> web.StreamResponse:
    arrived_at = time.monotonic()
    parsed, wanted = freeze(request, await read_body(request), "embeddings", arrived_at)
    assert isinstance(parsed, EmbeddingsRequest)
    answer = EmbeddingsAnswer(wanted.id, wanted.model, parsed.encoding_format or "float")
    return await serve(request, Ask(wanted, answer, parsed.ignored), SURFACE)


async def list_models(request: web.Request) -> web.Response:
    """The models that declare embeddings, in the shape of GET /models."""
    models = [model for model in offered(request.app[EDGE]) if "embeddings" in model.output_modalities]
    data = [cards.model_card(model).model_dump() for model in models]
    body = {"object": "list", "data": data, "total_count": len(data), "links": {"next": None}}
    return json_response(body)
