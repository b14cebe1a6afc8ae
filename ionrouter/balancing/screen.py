"""Hard filters: which endpoints a request may use at all, and for each other one the reason.

A table of filters, asked in order; the first to object names the exclusion. The last three (`TEMPORARY`)
are about this moment, not about the request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from ionrouter.balancing.assumed_price import is_unpriced
from ionrouter.balancing.circuit_breaker import BreakerState
from ionrouter.balancing.cost import price_at_tier
from ionrouter.balancing.fields import may_support, undeclared_parameters
from ionrouter.balancing.health import Health
from ionrouter.routing.table import Endpoint, ModelRoute
from ionrouter.routing.tags import matches
from ionrouter.schema.context_length import too_many
from ionrouter.schema.load import EngineLoad, context_room
from ionrouter.schema.request import InferenceRequest, ProviderPreferences

# OpenRouter: a plain `fp4` also means its microscaling relatives.
_QUANTIZATION_FAMILIES = {
    "fp4": frozenset({"fp4", "mxfp4", "nvfp4"}),
    "fp8": frozenset({"fp8", "mxfp8"}),
}
SERVICE_TIERS = {"flex": "flex", "priority": "priority", "fast": "priority", "ultrafast": "priority"}
_TIERS_OF_VARIANTS = {"nitro": "priority", "floor": "flex"}
TEMPORARY = frozenset({"loading", "retry_after", "breaker_open"})


class Subject(Struct, frozen=True):
    """One endpoint under one request at one moment: what a filter looks at."""

    endpoint: Endpoint
    request: InferenceRequest
    health: Health
    load: EngineLoad | None
    now: float
    needs: frozenset[str] = frozenset()  # contract_needs of the request, the same for all endpoints
    route: ModelRoute | None = None  # the model it is asked as
    takes_less: bool = False  # nobody has room for it: an engine inside gives the answer what is left

    @property
    def room(self) -> int | None:
        """Tokens of prompt and answer together, as far as known."""
        engines = None if self.load is None else self.load.context_length
        return context_room(self.endpoint.context_length, engines)


class Exclusion(Struct, frozen=True):
    """An endpoint left out, by which filter and why. `until` (monotonic) when time alone will help."""

    endpoint: Endpoint
    route: ModelRoute
    filter: str
    reason: str
    until: float | None = None
    is_domain: bool = False  # the breaker is open because the provider refuses our account
    room: int | None = None  # tokens of prompt and answer together, as far as known


def matches_any(names: Sequence[str], endpoint: Endpoint) -> bool:
    """Ask whether any of the names means this endpoint."""
    return any(matches(name, endpoint) for name in names)


def _disabled(s: Subject) -> str | None:
    return s.endpoint.disabled and f"disabled: {s.endpoint.disabled}"


def _allowed(s: Subject) -> str | None:
    prefs = s.request.preferences
    if prefs.only and not matches_any(prefs.only, s.endpoint):
        return f"not in provider.only {list(prefs.only)}"
    if prefs.ignore and matches_any(prefs.ignore, s.endpoint):
        return f"in provider.ignore {list(prefs.ignore)}"
    if prefs.order and not prefs.allow_fallbacks and not matches_any(prefs.order, s.endpoint):
        return f"not in provider.order {list(prefs.order)}, and provider.allow_fallbacks is false"
    return None


def asked_tier(request: InferenceRequest) -> str | None:
    """The service tier that a request names, `flex` or `priority`; all else is the usual one."""
    return SERVICE_TIERS.get(request.service_tier or "")


def _service_tier(s: Subject) -> str | None:
    own, asked = s.endpoint.service_tier, asked_tier(s.request)
    if own is None:
        if asked != "flex":
            return None
        peers = s.route.endpoints if s.route else ()
        if any(peer.service_tier == "flex" and not peer.disabled for peer in peers):
            return "service_tier is flex, and the model has endpoints for it"
        return None
    by_variant = {_TIERS_OF_VARIANTS.get(variant) for variant in (s.route.variants if s.route else ())}
    prefs = s.request.preferences
    if own == asked or own in by_variant or matches_any((*prefs.order, *prefs.only), s.endpoint):
        return None
    return f"serves the {own} tier, which was not asked for"


def _quantization(s: Subject) -> str | None:
    wanted = s.request.preferences.quantizations
    allowed = set(wanted).union(*(_QUANTIZATION_FAMILIES.get(name, ()) for name in wanted))
    if not wanted or s.endpoint.quantization in allowed:
        return None
    return f"quantization {s.endpoint.quantization} is not in provider.quantizations {list(wanted)}"


def _max_price(s: Subject) -> str | None:
    price = price_at_tier(s.endpoint.price, s.request.service_tier).at(s.request.prompt_tokens)
    is_asked_there = s.endpoint.provider.forward_provider  # another router, which keeps the limit itself
    if s.request.preferences.max_price and is_unpriced(s.endpoint) and not is_asked_there:
        return "nobody said what it costs, and provider.max_price is given"
    # Prices are USD per token; max_price says USD per million tokens, and USD per request.
    ours = {"prompt": price.prompt * 1e6, "completion": price.completion * 1e6, "request": price.request}
    for name, limit in s.request.preferences.max_price.items():
        if name in ours and ours[name] > limit * (1 + 1e-9):
            return f"{name} price {ours[name]:g} is over provider.max_price.{name} {limit:g}"
    return None


def _training(s: Subject) -> str | None:
    if s.request.preferences.data_collection == "allow" or s.endpoint.provider.data_collection == "deny":
        return None
    return "the provider may keep or train on data, and provider.data_collection is deny"


def _retention(s: Subject) -> str | None:
    if not s.request.preferences.zdr or s.endpoint.provider.zdr:
        return None
    return "the provider is not known for zero data retention, and provider.zdr is true"


def _distillable(s: Subject) -> str | None:
    if not s.request.preferences.enforce_distillable_text or (s.route and s.route.is_distillable):
        return None
    return "the model is not known to allow distillation, and provider.enforce_distillable_text is true"


def _context(s: Subject) -> str | None:
    room, wanted = s.room, s.request.max_tokens
    prompt = s.request.prompt_tokens if s.request.context_tokens is None else s.request.context_tokens
    is_engines = room != s.endpoint.context_length  # it shortens the answer itself, as no upstream does
    longest = prompt if s.takes_less and is_engines else prompt + (wanted or 0)
    if room is not None and longest > room:
        # Four characters a token: an answer's `usage` will count otherwise.
        return too_many(prompt, wanted, room)
    most = s.endpoint.max_completion_tokens
    if most is not None and wanted is not None and wanted > most:
        return f"max_tokens {wanted} is over this endpoint's limit {most}"
    return None


def _required(s: Subject) -> str | None:
    if not s.request.preferences.require_parameters:
        return None
    missing = undeclared_parameters(s.request, s.endpoint)
    return f"does not support {', '.join(missing)} (provider.require_parameters)" if missing else None


def _modalities(s: Subject) -> str | None:
    if s.request.input_modalities <= s.endpoint.input_modalities:
        return None
    missing = sorted(s.request.input_modalities - s.endpoint.input_modalities)
    return f"does not take {', '.join(missing)} input"


def _capability(s: Subject) -> str | None:
    if not s.needs:
        return None
    missing = sorted(name for name in s.needs if not may_support(s.endpoint, name))
    return f"does not support {', '.join(missing)}" if missing else None


def _loading(s: Subject) -> str | None:
    if s.load is None or s.load.ready or s.load.reason is None:
        return None  # not ready and no reason: cold, priced with its load time
    return s.load.reason


def _retry_after(s: Subject) -> str | None:
    left_s = s.health.retry_at - s.now
    return f"asked to come back in {left_s:.1f} s" if left_s > 0 else None


def _breaker(s: Subject) -> str | None:
    breaker = s.health.breaker
    if breaker.allows(s.now):
        return None
    if breaker.state(s.now) is BreakerState.HALF_OPEN:
        return "a trial request is under way"
    return f"circuit breaker open for {breaker.until - s.now:.1f} s more: {breaker.cause}"


# Filter names are OpenRouter's `excluded_by` words where it has one.
Filter = tuple[str, Callable[[Subject], str | None]]
FILTERS: tuple[Filter, ...] = (
    ("disabled", _disabled),
    ("allowed_providers", _allowed),
    ("service_tier", _service_tier),
    ("quantization", _quantization),
    ("max_price", _max_price),
    ("data_policy:training", _training),
    ("data_policy:zdr", _retention),
    ("distillable", _distillable),
    ("input_modalities", _modalities),
    ("context_length", _context),
    ("require_parameters", _required),
    ("capability", _capability),
    ("loading", _loading),
    ("retry_after", _retry_after),
    ("breaker_open", _breaker),
)
_PREFERRED = frozenset(
    {
        "allowed_providers", "quantization", "max_price", "data_policy:training", "data_policy:zdr",
        "distillable", "require_parameters",
    }
)  # fmt: skip
# Those that may object to a request which says nothing under `provider`.
_WITHOUT_PREFERENCES = tuple(entry for entry in FILTERS if entry[0] not in _PREFERRED)
_NONE_PREFERRED = ProviderPreferences()


def _is_beyond_objection(s: Subject) -> bool:
    """Ask at once whether no filter would object, as is usual; where this is in doubt, they are asked."""
    return (
        not s.endpoint.disabled
        and s.endpoint.service_tier is None
        and s.request.service_tier is None
        and s.request.input_modalities <= s.endpoint.input_modalities
        and not s.needs
        and s.load is None
        and s.health.retry_at <= s.now
        and s.health.breaker.is_closed
        and _context(s) is None
        and s.request.preferences == _NONE_PREFERRED
    )


def screen(subject: Subject, route: ModelRoute) -> Exclusion | None:
    """Ask the filters in order; the first objection, or None when the endpoint may be used."""
    if _is_beyond_objection(subject):
        return None
    has_preferences = subject.request.preferences != _NONE_PREFERRED
    for name, objection in FILTERS if has_preferences else _WITHOUT_PREFERENCES:
        reason = objection(subject)
        if reason:
            until = {"retry_after": subject.health.retry_at, "breaker_open": subject.health.breaker.until}
            is_domain = name == "breaker_open" and subject.health.breaker.is_domain
            return Exclusion(subject.endpoint, route, name, reason, until.get(name), is_domain, subject.room)
    return None
