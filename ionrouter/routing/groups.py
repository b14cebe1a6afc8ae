"""Groups as what they look like from outside: one model whose endpoints are those of its members. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ionrouter.routing.naming import FREE_ROUTER, is_free, with_variants
from ionrouter.routing.resolve import resolve, split_variant
from ionrouter.routing.table import ModelRoute, RoutingTable


def group_names(table: RoutingTable) -> tuple[str, ...]:
    """Name the file's groups, and the one that is always there where something is free."""
    has_free = any(is_free(endpoint) for model in table.models.values() for endpoint in model.endpoints)
    own = (FREE_ROUTER,) if has_free and FREE_ROUTER not in table.groups else ()
    return (*table.groups, *own)


def group_route(table: RoutingTable, name: str) -> ModelRoute:
    """Make one route of a group's members, for listings; requests are routed member by member."""
    members = list(_members(table, name))
    endpoints = {endpoint.id: endpoint for member in members for endpoint in member.endpoints}
    lengths = [e.context_length for e in endpoints.values() if e.context_length is not None]
    return ModelRoute(
        id=name,
        name=name,
        endpoints=tuple(endpoints.values()),
        description="A group: each request goes to one of " + ", ".join(member.id for member in members),
        context_length=max(lengths, default=None),
        input_modalities=_united(member.input_modalities for member in members) or ("text",),
        output_modalities=_united(member.output_modalities for member in members) or ("text",),
        group=name,
    )


def _members(table: RoutingTable, name: str) -> Iterable[ModelRoute]:
    if name not in table.groups:
        free = (with_variants(model, ("free",)) for model in table.models.values())
        return [model for model in free if model.endpoints]
    found = (_member(table, member) for member in table.groups[name])
    return [route for route in found if route is not None]


def _member(table: RoutingTable, name: str) -> ModelRoute | None:
    base, variants = split_variant(name, table)
    route = resolve(table, base)
    return None if route is None else with_variants(route, variants)


def _united(lists: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item for items in lists for item in items))
