"""Which endpoints a short name means: in a request's `order`, `only`, `ignore`, and in routes.yaml."""

from __future__ import annotations

from ionrouter.routing.table import Endpoint

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
