"""From hedges, shadows and percentages in routes.yaml to what a route carries. Knows no request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ionrouter.routing.document import Catalog
from ionrouter.routing.spec import ModelSpec
from ionrouter.routing.spec_traffic import HedgeSpec, ShadowSpec
from ionrouter.routing.table import Arm, Endpoint, Hedge, ModelRoute, Shadow, Split
from ionrouter.routing.tags import matches

REST = "the others"  # the arm of whom a canary leaves


def with_traffic(catalog: Catalog, routes: Mapping[str, ModelRoute]) -> dict[str, ModelRoute]:
    """The same routes, with what the file says of moving their requests."""
    specs = catalog.spec.models
    return {
        name: _moved(route, specs[name], routes) if name in specs else route for name, route in routes.items()
    }


def _moved(route: ModelRoute, spec: ModelSpec, routes: Mapping[str, ModelRoute]) -> ModelRoute:
    return replace(
        route,
        hedge=_hedge(spec.hedge) if spec.hedge else None,
        shadow=_shadow(spec.shadow, route, routes) if spec.shadow else None,
        split=split_of(route, spec),
    )


def _hedge(spec: HedgeSpec) -> Hedge:
    return Hedge(after_s=spec.after, floor_s=spec.floor, budget=spec.budget)


def _shadow(spec: ShadowSpec, route: ModelRoute, routes: Mapping[str, ModelRoute]) -> Shadow | None:
    endpoint = find_shadow(spec.endpoint, route, routes)
    return None if endpoint is None else Shadow(endpoint, spec.share, spec.max_running)


def find_shadow(name: str, route: ModelRoute, routes: Mapping[str, ModelRoute]) -> Endpoint | None:
    """The model's own endpoint of that name, else any endpoint of that id."""
    own = meant(name, route.endpoints)
    others = (e for other in routes.values() for e in other.endpoints if e.id == name)
    return own[0] if own else next(others, None)


def meant(name: str, endpoints: Iterable[Endpoint]) -> list[Endpoint]:
    """Endpoints that a name means; one that is called exactly so goes before those of a provider."""
    found = [endpoint for endpoint in endpoints if matches(name, endpoint)]
    return [endpoint for endpoint in found if endpoint.id == name] or found


def split_of(route: ModelRoute, spec: ModelSpec) -> Split | None:
    """A model's percentages; a canary is a split of two arms."""
    if spec.canary is not None:
        chosen = frozenset(e.id for e in meant(spec.canary.endpoint, route.endpoints))
        rest = frozenset(e.id for e in route.endpoints) - chosen
        percent = spec.canary.percent
        arms = (Arm(spec.canary.endpoint, percent, chosen), Arm(REST, 100.0 - percent, rest))
        return Split(f"canary of {route.id}", arms)
    if spec.split is None:
        return None
    members = {name: frozenset(e.id for e in meant(name, route.endpoints)) for name in spec.split}
    return Split(f"split of {route.id}", tuple(Arm(n, p, members[n]) for n, p in spec.split.items()))


def groups(catalog: Catalog) -> dict[str, Iterable[str]]:
    """All names for several models, whether these compete or share by percentages."""
    return {**catalog.spec.groups, **catalog.spec.splits}


def group_splits(catalog: Catalog) -> dict[str, Split]:
    """Names for several models that share requests by percentages."""
    return {
        name: Split(f"split of {name}", tuple(Arm(m, p, frozenset({m})) for m, p in shares.items()))
        for name, shares in catalog.spec.splits.items()
    }
