"""Warnings on what a catalog says of moving traffic: hedges without a second, shadows of nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ionrouter.errors import Problem
from ionrouter.routing.document import Catalog
from ionrouter.routing.rules import offers
from ionrouter.routing.table import Endpoint, ModelRoute, RoutingTable
from ionrouter.routing.yaml_source import Loc

MIN_PROBE_S = 10.0  # more often is load, not a check


def find_problems(catalog: Catalog, table: RoutingTable) -> Iterator[Problem]:
    """Run every check on a catalog without errors."""
    for loc, offer, _ in offers(catalog):
        if offer.probe is not None and 0 < offer.probe < MIN_PROBE_S:
            message = f"a request every {offer.probe:g} s to an idle endpoint; {MIN_PROBE_S:g} s is plenty"
            yield catalog.source.problem((*loc, "probe"), message, "warning")
    for name in catalog.spec.models:
        for advise in _ON_ROUTES:
            for field, message in advise(table.models[name]):
                yield catalog.source.problem(("models", name, *field), message, "warning")


Advice = Iterator[tuple[Loc, str]]


def _usable(route: ModelRoute) -> list[Endpoint]:
    return [endpoint for endpoint in route.endpoints if endpoint.disabled is None]


def _hedges(route: ModelRoute) -> Advice:
    if route.hedge is None:
        return
    usable = _usable(route)
    if len({endpoint.identity for endpoint in usable}) < 2:
        yield ("hedge",), f"nobody to ask beside: {len(usable)} endpoint of this model can be used"
    if route.hedge.budget == 0:
        yield ("hedge", "budget"), "0: no second endpoint is ever asked"
    slowest = min((endpoint.timeouts.first_token_s for endpoint in usable), default=None)
    wait_s = max(route.hedge.after_s or 0.0, route.hedge.floor_s)
    if slowest is not None and wait_s >= slowest:
        message = f"waits {wait_s:g} s, but an attempt ends after {slowest:g} s (timeouts.first_token)"
        yield ("hedge",), message


def _shadows(route: ModelRoute) -> Advice:
    shadow = route.shadow
    if shadow is None:
        return
    if shadow.endpoint.disabled is not None:
        yield ("shadow", "endpoint"), f"{shadow.endpoint.id} is disabled: {shadow.endpoint.disabled}"
    if shadow.share == 0:
        yield ("shadow", "share"), "0: nothing is copied"
    keeps = [e for e in _usable(route) if e.provider.data_collection == "deny"]
    if keeps and shadow.endpoint.provider.data_collection == "allow":
        message = f"copies of prompts go to {shadow.endpoint.id}, whose provider may keep them; those of "
        yield ("shadow", "endpoint"), message + f"{keeps[0].id} may not"


def _splits(route: ModelRoute) -> Advice:
    if route.split is None:
        return
    usable = {endpoint.id for endpoint in _usable(route)}
    where = "canary" if route.split.name.startswith("canary") else "split"
    for arm in route.split.arms:
        if arm.members and not arm.members & usable:
            yield (where,), f"'{arm.name}' cannot be used now: its {arm.percent:g}% go to the others"
    placed = frozenset[str]().union(*(arm.members for arm in route.split.arms))
    if rest := sorted(usable - placed):
        yield (where,), f"in no part, so only a fallback: {', '.join(rest)}"


_ON_ROUTES: tuple[Callable[[ModelRoute], Advice], ...] = (_hedges, _shadows, _splits)
