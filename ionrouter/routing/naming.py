"""From the names in a request to tiers of routes: models, groups, variants. Pure; knows no health.

A group (`openrouter/auto`) gives several routes that are one tier. `openrouter/free`, unless the file says
otherwise, is the group of all models with an endpoint that is known to be free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ionrouter.errors import AvailabilityError
from ionrouter.routing.resolve import is_configured, resolve, serves, split_variant
from ionrouter.routing.table import Endpoint, ModelRoute, RoutingTable
from ionrouter.schema.request import InferenceRequest
from ionrouter.schema.variants import VARIANTS

FREE_ROUTER = "openrouter/free"
ONLINE = "online"


def routes_of(table: RoutingTable, name: str, request: InferenceRequest) -> tuple[ModelRoute, ...]:
    """Find the routes of one name: one of a model, several of a group.

    Raises AvailabilityError 400 (`model_not_found`, `wrong_endpoint`) naming what is wrong with the name.
    """
    fitting = tuple(route for route in _named(table, name, request) if serves(route, request.kind))
    if not fitting:
        raise _unusable(_wrong_kind(name, request), name, request, code="wrong_endpoint")
    return fitting


def _named(table: RoutingTable, name: str, request: InferenceRequest) -> tuple[ModelRoute, ...]:
    """Find a name's routes of every kind: a group may mix them, each request takes those for its own."""
    base, variants = split_variant(name, table)
    if ONLINE in variants:
        message = f"{name}: the suffix ':online' needs the web plugin, which this router does not have"
        raise _unusable(message, name, request, code="model_not_found")
    members = _members(table, base, request)
    if not members:
        raise _unusable(_unknown(table, name, base), name, request, code="model_not_found")
    return tuple(with_variants(route, variants) for route in members)


def _members(table: RoutingTable, base: str, request: InferenceRequest) -> list[ModelRoute]:
    if base in table.groups:
        split = table.splits.get(base)
        return [
            replace(route, group=base, group_split=split, group_arm=member)
            for member in table.groups[base]
            for route in _named(table, member, request)
        ]
    route = resolve(table, base)
    if route is None and base == FREE_ROUTER:
        free = (with_variants(model, ("free",)) for model in table.models.values())
        return [replace(model, group=base) for model in free if model.endpoints]
    return [] if route is None else [route]


def with_variants(route: ModelRoute, variants: tuple[str, ...]) -> ModelRoute:
    """Keep the endpoints that the suffixes allow; select reads the others' meaning from `variants`."""
    if not variants:
        return route
    endpoints = route.endpoints
    for variant in variants:
        endpoints = _KEPT.get(variant, tuple)(endpoints)
    return replace(route, endpoints=endpoints, variants=(*route.variants, *variants))


def is_free(endpoint: Endpoint) -> bool:
    """Ask whether it is known to cost nothing."""
    price = endpoint.price
    return price.prompt == price.completion == price.request == 0 and endpoint.price_source != "unknown"


def _free(endpoints: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    return tuple(endpoint for endpoint in endpoints if is_free(endpoint))


def _longest(endpoints: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    """Those with the longest context that is stated; of those that state none nobody knows."""
    longest = max((endpoint.context_length or 0 for endpoint in endpoints), default=0)
    return tuple(endpoint for endpoint in endpoints if (endpoint.context_length or 0) == longest)


_KEPT: dict[str, Callable[[tuple[Endpoint, ...]], tuple[Endpoint, ...]]] = {
    "free": _free,
    "extended": _longest,
}


def _unknown(table: RoutingTable, name: str, base: str) -> str:
    head, colon, suffix = base.rpartition(":")
    head, _ = split_variant(head, table)
    if colon and (is_configured(table, head) or resolve(table, head) is not None):
        known = ", ".join(f":{variant}" for variant in VARIANTS if variant != ONLINE)
        return f"{name} is not a valid model ID: unknown suffix ':{suffix}', known are {known}"
    return f"{name} is not a valid model ID"


def _wrong_kind(name: str, request: InferenceRequest) -> str:
    """A model for vectors asked for text, or the reverse."""
    if request.kind == "embeddings":
        return f"{name} does not make embeddings; see /embeddings/models"
    if request.kind == "rerank":
        return f"{name} does not rerank; see /models?output_modalities=rerank"
    return f"{name} only makes embeddings or reranks; ask /embeddings or /rerank"


def _unusable(message: str, name: str, request: InferenceRequest, *, code: str) -> AvailabilityError:
    return AvailabilityError(
        message,
        status=400,
        error_type="invalid_request",
        param="model" if name == request.model else "models",
        availability={
            "code": code,
            "retryable": False,
            "requested_models": [request.model, *request.models],
            "docs_url": "docs/api.md" if code == "wrong_endpoint" else "docs/routing.md",
        },
    )
