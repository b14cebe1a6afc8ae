"""GET models, endpoints, providers: what is served, by whom, and how fast it has been."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from aiohttp import web

from ionrouter.api import cards
from ionrouter.api.listing import POPULAR, SPEEDS, page, page_by_ids, select_models, sort_models
from ionrouter.api.offers import as_loaded, offered, with_room
from ionrouter.api.responses import json_response
from ionrouter.api.row_stream import Answer, paced
from ionrouter.api.state import EDGE, KEY, Edge, is_owner
from ionrouter.errors import RequestError
from ionrouter.routing.groups import group_names, group_route
from ionrouter.routing.resolve import resolve, split_variant
from ionrouter.routing.table import Endpoint, ModelRoute
from ionrouter.schema.models import EndpointCard
from ionrouter.stats import popularity, published
from ionrouter.stats.book import PURPOSES, Purpose

ANTHROPICS = "Anthropic-Version"  # a header that Anthropic's clients send
CARDS_AT_ONCE = 25  # about a millisecond of the event loop


async def list_models(request: web.Request) -> web.Response:
    """OpenRouter's list with OpenAI's `object` fields: both families of clients read it."""
    edge, order = request.app[EDGE], request.query.get("sort")
    chosen = select_models(offered(edge), request.query)
    figures = await _figures(edge, chosen, order)
    ordered = sort_models(chosen, order, figures)
    if ANTHROPICS in request.headers:
        return await _list_for_anthropics(ordered, request.query)
    shown, next_offset = page(ordered, request.query)
    link = None if next_offset is None else str(request.rel_url.update_query(offset=next_offset))
    return json_response(
        {
            "object": "list",
            "data": await _model_cards(shown),
            "total_count": len(ordered),
            "links": {"next": link},
        }
    )


async def _list_for_anthropics(models: Sequence[ModelRoute], query: Mapping[str, str]) -> web.Response:
    """Anthropic's list, whose clients go from page to page by the ids at its ends."""
    shown, has_more = page_by_ids(models, query)
    ends = {"first_id": shown[0].id if shown else None, "last_id": shown[-1].id if shown else None}
    data = [cards.for_anthropics(card) for card in await _model_cards(shown)]
    return json_response({"data": data, "has_more": has_more, **ends, "total_count": len(models)})


async def _model_cards(models: Sequence[ModelRoute]) -> list[dict[str, Any]]:
    """Make their cards, a millisecond or so at a time: a thousand take 50, in which nothing else went on."""
    made: list[dict[str, Any]] = []
    for number, model in enumerate(models, 1):
        made.append(cards.model_card(model).model_dump())
        if number % CARDS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return made


async def list_own_models(request: web.Request) -> web.Response:
    """The models that this key may use: here all of them, for keys differ in limits alone."""
    return await list_models(request)


async def count_models(request: web.Request) -> web.Response:
    return json_response({"data": {"count": len(select_models(offered(request.app[EDGE]), request.query))}})


async def get_model(request: web.Request) -> web.Response:
    """OpenRouter's single look-up: GET /model/{author}/{slug}."""
    return json_response({"data": _card(request)})


async def retrieve_model(request: web.Request) -> web.Response:
    """OpenAI's and Anthropic's single look-up: GET /models/{id}, the bare object."""
    card = _card(request)
    return json_response(cards.for_anthropics(card) if ANTHROPICS in request.headers else card)


def _card(request: web.Request) -> dict[str, Any]:
    return cards.model_card(as_loaded(request.app[EDGE], _model(request))).model_dump()


async def model_endpoints(request: web.Request) -> web.Response:
    """A model's endpoints with their statistics: of callers' requests, or of shadows or probes."""
    model, owners = _model(request), request.app[EDGE].router.table.models
    listed = [(owners.get(endpoint.model_id, model), endpoint) for endpoint in model.endpoints]
    return json_response({"data": cards.model_endpoints(model, await _cards(request, listed)).model_dump()})


async def zdr_endpoints(request: web.Request) -> web.Response:
    """Every endpoint of a provider that keeps nothing, whatever its model: one flat list."""
    kept = [
        (model, endpoint)
        for model in request.app[EDGE].router.table.models.values()
        for endpoint in cards.enabled(model)
        if endpoint.provider.zdr
    ]
    return json_response({"data": [card.model_dump() for card in await _cards(request, kept)]})


async def _cards(request: web.Request, listed: Sequence[tuple[ModelRoute, Endpoint]]) -> list[EndpointCard]:
    edge, now, purpose = request.app[EDGE], time.time(), _purpose(request)
    subjects = [endpoint.counted_as for _, endpoint in listed]
    summaries = await _worked_out(edge, published.summaries(edge.stats, subjects, now, purpose))
    return [
        cards.endpoint_card(
            model,
            with_room(edge, endpoint),
            summaries[endpoint.counted_as],
            status=edge.endpoint_status(endpoint),
            shows_speed=not edge.asks_for_keys or KEY in request,
            unavailable=edge.unavailable(endpoint, is_owner(request)),
        )
        for model, endpoint in listed
    ]


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


async def _figures(edge: Edge, models: Iterable[ModelRoute], order: str | None) -> Mapping[str, float | None]:
    """Model -> what it is sorted by, where statistics tell: the best median over its endpoints, or tokens."""
    now = time.time()
    if order in POPULAR:
        return await _worked_out(edge, popularity.steps(edge.stats, now))
    if order not in SPEEDS:
        return {}
    speed, best = SPEEDS[order]
    owned = {model.id: [each.counted_as for each in cards.enabled(model)] for model in models}
    subjects = dict.fromkeys(subject for owner in owned.values() for subject in owner)
    steps = published.medians(edge.stats, subjects, speed, edge.settings.stats_window_s, now)
    medians = await _worked_out(edge, steps)
    return {
        model_id: best((medians[each] for each in owner if each in medians), default=None)
        for model_id, owner in owned.items()
    }


async def _worked_out(edge: Edge, steps: Iterator[Answer | None]) -> Answer:
    """The one answer of these steps, paced like all long answers of the statistics."""
    async with aclosing(paced(steps, edge.stats_turn)) as answers:
        async for answer in answers:
            return answer
    raise AssertionError("the steps end with an answer")
