"""Health, metrics, dry runs and reload: for operators and their machines, not for inference clients."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from typing import Any

from aiohttp import web

from ionrouter import metrics
from ionrouter.api.inference import freeze, read_body
from ionrouter.api.messages import read_messages
from ionrouter.api.responses import json_response, plain
from ionrouter.api.responses_api import read_responses
from ionrouter.api.row_stream import paced
from ionrouter.api.state import EDGE, KEY, Edge, is_owner
from ionrouter.errors import RequestError
from ionrouter.schema.request import InferenceRequest, Kind


async def health(request: web.Request) -> web.Response:
    """Readiness: 200 when this process should get traffic, else 503. Why is for whoever may know."""
    edge = request.app[EDGE]
    report: dict[str, Any] = {"status": edge.readiness.status}
    if not edge.asks_for_keys or KEY in request:
        report |= edge.readiness.details(is_owner(request))
    return json_response(report, status=200 if edge.readiness.is_ready else 503)


async def livez(_request: web.Request) -> web.Response:
    """Liveness: the event loop turns."""
    return json_response({"status": "ok"})


async def prometheus(request: web.Request) -> web.Response:
    """All of it as one answer, worked out beside other requests like long answers of the statistics."""
    edge, body = request.app[EDGE], bytearray()
    async with aclosing(paced(edge.metrics.pieces(), edge.stats_turn)) as pieces:
        async for piece in pieces:
            body += piece
    return web.Response(body=bytes(body), headers={"Content-Type": metrics.CONTENT_TYPE})


async def explain(request: web.Request) -> web.Response:
    """Say where this request would go and why, sending nothing: a whole request to `?api=` as the body."""
    wanted, edge = await _wanted(request), request.app[EDGE]
    told = plain(edge.router.explain(wanted))
    if is_owner(request):
        _tell_whole(edge, told.get("excluded", ()))
    return json_response({"data": told})


_KINDS: Mapping[str, Kind] = {
    "chat/completions": "chat",
    "completions": "completions",
    "embeddings": "embeddings",
    "rerank": "rerank",
}


async def _wanted(request: web.Request) -> InferenceRequest:
    api = request.query.get("api", "chat/completions")
    if api == "messages":
        return (await read_messages(request))[-1]
    if api == "responses":
        return (await read_responses(request))[-1]
    if api not in _KINDS:
        known = ", ".join((*_KINDS, "messages", "responses"))
        raise RequestError(f"api: should be one of {known}", param="api")
    arrived_at = time.monotonic()
    return freeze(request, await read_body(request), _KINDS[api], arrived_at)[1]


def _tell_whole(edge: Edge, excluded: Iterable[dict[str, Any]]) -> None:
    """Give what keeps the engine inside from answering with its places on disk."""
    models = edge.router.table.models
    for row in excluded:
        if row["filter"] == "loading" and row["model_id"] in models:
            for endpoint in models[row["model_id"]].endpoints:
                if endpoint.id == row["endpoint_id"]:
                    row["reason"] = edge.unavailable(endpoint, True) or row["reason"]


async def reload(request: web.Request) -> web.Response:
    """Read routes.yaml again; a file with errors changes nothing and is answered with all of them."""
    return json_response({"data": dict(await request.app[EDGE].reload())})
