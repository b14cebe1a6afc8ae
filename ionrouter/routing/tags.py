"""Which endpoints a short name means: in `order`, `only`, `ignore` and `options`, and in routes.yaml."""

from __future__ import annotations

from ionrouter.routing.table import Endpoint, RoutingTable

_TIERS = frozenset({"flex", "priority"})  # endpoints of another service level: only by their full tag


def matches(name: str, endpoint: Endpoint) -> bool:
    """Ask whether a name in `order`, `only` or `ignore` means this endpoint; case does not matter.

    "deepinfra" and "DeepInfra" mean all of that provider's endpoints except other service tiers,
    "deepinfra/turbo" means one.
    """
    wanted, tag = name.strip().lower(), endpoint.tag.lower()
    if wanted in (tag, endpoint.id.lower()):
        return True
    is_tier = endpoint.service_tier is not None or tag.rpartition("/")[2] in _TIERS
    return wanted in (endpoint.provider.slug.lower(), endpoint.provider.name.lower()) and not is_tier


def is_named(name: str, endpoint: Endpoint) -> bool:
    """Ask the same of a key of `provider.options`: a provider's name means its other service tiers, too."""
    provider = endpoint.provider
    known = (provider.slug, provider.name, endpoint.tag, endpoint.id)
    return name.strip().lower() in {each.lower() for each in known}


def means_nobody(name: str, table: RoutingTable) -> bool:
    """Ask whether a name means no provider and no endpoint of a table: it is misspelt, say."""
    wanted = name.strip().lower()
    if any(wanted in (slug.lower(), provider.name.lower()) for slug, provider in table.providers.items()):
        return False
    listed = [endpoint for model in table.models.values() for endpoint in model.endpoints]
    return not any(is_named(name, endpoint) for endpoint in listed)
