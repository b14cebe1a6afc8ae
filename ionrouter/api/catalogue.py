"""GET models, endpoints, providers: what is served, by whom, and how fast it has been."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from aiohttp import web

from ionrouter.api import cards
from ionrouter.api.listing import POPULAR, page, select_models, sort_models
from ionrouter.api.offers import as_loaded, offered, with_room
from ionrouter.api.responses import json_response
from ionrouter.api.row_stream import paced
from ionrouter.api.state import EDGE, KEY, Edge
from ionrouter.errors import RequestError
from ionrouter.routing.groups import group_names, group_route
from ionrouter.routing.resolve import resolve, split_variant
from ionrouter.routing.table import Endpoint, ModelRoute
from ionrouter.schema.models import EndpointCard
from ionrouter.stats import popularity
from ionrouter.stats.book import PURPOSES, Percentiles, Purpose


async def list_models(request: web.Request) -> web.Response:
    """OpenRouter's list with OpenAI's `object` fields: both families of clients read it."""
    edge = request.app[EDGE]
    chosen = select_models(offered(edge), request.query)
    order, speeds = request.query.get("sort"), _Speeds(edge)
    tokens = await _tokens_of_a_week(edge) if order in POPULAR else {}
    ordered = sort_models(chosen, order, latency=speeds.latency, throughput=speeds.throughput, tokens=tokens)
    shown, next_offset = page(ordered, request.query)
    link = None if next_offset is None else str(request.rel_url.update_query(offset=next_offset))
    return json_response(
        {
            "object": "list",
            "data": [cards.model_card(model).model_dump() for model in shown],
            "total_count": len(ordered),
            "links": {"next": link},
        }
    )


async def list_own_models(request: web.Request) -> web.Response:
    """The models that this key may use: here all of them, for keys differ in limits alone."""
    return await list_models(request)


async def count_models(request: web.Request) -> web.Response:
    return json_response({"data": {"count": len(select_models(offered(request.app[EDGE]), request.query))}})


async def get_model(request: web.Request) -> web.Response:
    """OpenRouter's single look-up: GET /model/{author}/{slug}."""
    return json_response({"data": _card(request)})


async def retrieve_model(request: web.Request) -> web.Response:
    """OpenAI's single look-up: GET /models/{id}, the bare object."""
    return json_response(_card(request))


def _card(request: web.Request) -> dict[str, Any]:
    return cards.model_card(as_loaded(request.app[EDGE], _model(request))).model_dump()


async def model_endpoints(request: web.Request) -> web.Response:
    """A model's endpoints with their statistics: of callers' requests, or of shadows or probes."""
    edge = request.app[EDGE]
    model, now, purpose = _model(request), time.time(), _purpose(request)
    shows_speed = not edge.asks_for_keys or KEY in request
    owners = edge.router.table.models
    endpoints = [
        _endpoint_card(edge, owners.get(endpoint.model_id, model), endpoint, now, purpose, shows_speed)
        for endpoint in model.endpoints
    ]
    return json_response({"data": cards.model_endpoints(model, endpoints).model_dump()})


async def zdr_endpoints(request: web.Request) -> web.Response:
    """Every endpoint of a provider that keeps nothing, whatever its model: one flat list."""
    edge, now, purpose = request.app[EDGE], time.time(), _purpose(request)
    shows_speed = not edge.asks_for_keys or KEY in request
    kept = [
        _endpoint_card(edge, model, endpoint, now, purpose, shows_speed).model_dump()
        for model in edge.router.table.models.values()
        for endpoint in cards.enabled(model)
        if endpoint.provider.zdr
    ]
    return json_response({"data": kept})


def _endpoint_card(
    edge: Edge, model: ModelRoute, endpoint: Endpoint, now: float, purpose: Purpose, shows_speed: bool
) -> EndpointCard:
    return cards.endpoint_card(
        model,
        with_room(edge, endpoint),
        edge.stats.endpoint_summary(endpoint.id, now, purpose),
        status=edge.endpoint_status(endpoint),
        shows_speed=shows_speed,
        unavailable=edge.unavailable(endpoint),
    )


async def list_providers(request: web.Request) -> web.Response:
    providers = request.app[EDGE].router.table.providers.values()
    return json_response({"data": [cards.provider_card(provider).model_dump() for provider in providers]})


def _purpose(request: web.Request) -> Purpose:
    asked = request.query.get("role", "main")
    found = next((purpose for purpose in PURPOSES if purpose == asked), None)
    if found is None:
        raise RequestError(f"unknown role '{asked[:40]}'; known are {', '.join(PURPOSES)}", param="role")
    return found


def _model(request: web.Request) -> ModelRoute:
    table = request.app[EDGE].router.table
    name = request.match_info["model"]
    base, _ = split_variant(name, table)
    if base in group_names(table):
        return group_route(table, base)
    if (model := resolve(table, base)) is None:
        raise RequestError(f"no model '{name[:200]}'", status=404, error_type="not_found", param="model")
    return model


async def _tokens_of_a_week(edge: Edge) -> Mapping[str, int]:
    """Model -> tokens. Paced like all long answers of the statistics: requests go on meanwhile."""
    async with aclosing(paced(popularity.steps(edge.stats, time.time()), edge.stats_turn)) as answers:
        async for tokens in answers:
            return tokens
    raise AssertionError("the steps end with an answer")


class _Speeds:
    """A model's best median over its endpoints, for sorting."""

    def __init__(self, edge: Edge) -> None:
        self._stats, self._window_s, self._now = edge.stats, edge.settings.stats_window_s, time.time()

    def latency(self, model: ModelRoute) -> float | None:
        return min(self._medians(model, "ttft_ms"), default=None)

    def throughput(self, model: ModelRoute) -> float | None:
        return max(self._medians(model, "throughput"), default=None)

    def _medians(self, model: ModelRoute, figure: str) -> list[float]:
        found: list[Percentiles | None] = [
            getattr(self._stats.window(endpoint.id, self._window_s, self._now), figure)
            for endpoint in cards.enabled(model)
        ]
        return [measured.p50 for measured in found if measured is not None]
