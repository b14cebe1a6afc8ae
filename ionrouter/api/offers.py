"""What is offered now: routes.yaml's models, with what the engines inside know of their own endpoints."""

from __future__ import annotations

from dataclasses import replace

from ionrouter.api.cards import enabled
from ionrouter.api.state import Edge
from ionrouter.routing.groups import group_route
from ionrouter.routing.table import Endpoint, ModelRoute
from ionrouter.schema.load import EngineLoad, context_room


def offered(edge: Edge) -> list[ModelRoute]:
    """Models that have an endpoint which takes traffic, or will once it is loaded; explain has the others."""
    table = edge.router.table
    groups = (group_route(table, name) for name in table.groups)
    models = [as_loaded(edge, model) for model in (*table.models.values(), *groups)]
    return [model for model in models if enabled(model)]


def as_loaded(edge: Edge, model: ModelRoute) -> ModelRoute:
    """The model without endpoints whose engine has failed, and with the context lengths that there are."""
    if all(endpoint.local is None for endpoint in model.endpoints):
        return model
    endpoints = tuple(_loaded(endpoint, _load_of(edge, endpoint)) for endpoint in model.endpoints)
    usable = [endpoint for endpoint in endpoints if endpoint.disabled is None]
    longest = max((e.context_length for e in usable if e.context_length is not None), default=None)
    return replace(model, endpoints=endpoints, context_length=context_room(model.context_length, longest))


def with_room(edge: Edge, endpoint: Endpoint) -> Endpoint:
    """The endpoint with the context length that a request has there, as far as known."""
    return _in_room(endpoint, _load_of(edge, endpoint))


def _load_of(edge: Edge, endpoint: Endpoint) -> EngineLoad | None:
    return None if endpoint.disabled else edge.engine_load(endpoint)


def _loaded(endpoint: Endpoint, load: EngineLoad | None) -> Endpoint:
    if load is not None and load.has_failed:
        endpoint = replace(endpoint, disabled=load.reason)
    return _in_room(endpoint, load)


def _in_room(endpoint: Endpoint, load: EngineLoad | None) -> Endpoint:
    room = context_room(endpoint.context_length, None if load is None else load.context_length)
    return endpoint if room == endpoint.context_length else replace(endpoint, context_length=room)
