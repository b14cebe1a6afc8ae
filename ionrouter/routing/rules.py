"""Errors in a catalog that need more than one field to see. One function a rule; the table is at the end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ionrouter.errors import Problem, RequestError
from ionrouter.routing.document import Catalog
from ionrouter.routing.endpoints import timeouts_of
from ionrouter.routing.globs import best_match
from ionrouter.routing.models import upstream_name
from ionrouter.routing.spec import EndpointSpec, Offer, ProviderSpec
from ionrouter.routing.spec_options import OPTIONS
from ionrouter.routing.table import ProviderType
from ionrouter.routing.validation import problems_in
from ionrouter.routing.values import Reach, reach
from ionrouter.routing.yaml_source import Loc
from ionrouter.schema.chat import ChatRequest
from ionrouter.schema.presets import cache_faults
from ionrouter.schema.validation import validated
from ionrouter.schema.variants import VARIANTS

Rule = Callable[[Catalog], Iterator[Problem]]

# Fields of a provider by type: (needed, not allowed).
_PROVIDER_FIELDS: dict[ProviderType, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ion": (
        (),
        (
            *("base_url", "litellm_provider", "keys", "headers", "discover", "region"),
            *("forward_provider", "forward_unknown", "forward_trace"),
        ),
    ),
    "litellm": (("litellm_provider",), ("discover", "forward_provider", "forward_unknown", "forward_trace")),
    "openai": (("base_url",), ("litellm_provider",)),
    "fake": ((), ("base_url", "litellm_provider", "discover", "forward_provider", "forward_trace")),
}
_PRECISIONS = ("precision", "head_precision", "kv_precision")
_ION_FIELDS = (
    *("weights", "sha256", "numerics", "device", *_PRECISIONS, "kv_memory", "kv_tier", "prefix_cache"),
    *("unload", "max_running", "max_mixed_step_ratio", "threads"),
)
_KEY_HEADERS = frozenset({"authorization", "x-api-key", "api-key", "proxy-authorization", "cookie"})
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_PLACEHOLDERS = frozenset({"model", "name", "author"})


def find_problems(catalog: Catalog) -> list[Problem]:
    """Run every rule."""
    return [problem for rule in RULES for problem in rule(catalog)]


def offers(catalog: Catalog) -> Iterator[tuple[Loc, Offer, ProviderSpec]]:
    """Every endpoint and pattern whose provider exists, with its place in the file."""
    providers = catalog.spec.providers
    for name, model in catalog.spec.models.items():
        for index, endpoint in enumerate(model.endpoints):
            if endpoint.provider in providers:
                yield ("models", name, "endpoints", index), endpoint, providers[endpoint.provider]
    for glob, pattern in catalog.spec.patterns.items():
        if pattern.provider in providers:
            yield ("patterns", glob), pattern, providers[pattern.provider]


def _something_to_serve(catalog: Catalog) -> Iterator[Problem]:
    spec, data = catalog.spec, catalog.source.data
    has_discovery = any(provider.discover for provider in spec.providers.values())
    if isinstance(data, dict) and not (data.get("models") or data.get("patterns") or has_discovery):
        yield Problem("", "no models, no patterns and nothing to discover: nothing to serve", 1)


def _provider_fields(catalog: Catalog) -> Iterator[Problem]:
    for slug, provider in catalog.spec.providers.items():
        needed, refused = _PROVIDER_FIELDS[provider.type]
        for field in needed:
            if getattr(provider, field) is None and not _is_written(catalog, ("providers", slug, field)):
                yield catalog.source.problem(
                    ("providers", slug), f"a provider of type {provider.type} needs {field}"
                )
        for field in refused:
            if field in provider.model_fields_set:
                yield catalog.source.problem(
                    ("providers", slug, field), f"a provider of type {provider.type} has no {field}"
                )


def _is_written(catalog: Catalog, loc: Loc) -> bool:
    return loc in catalog.source.lines  # wrong there, and reported already


def _provider_addresses(catalog: Catalog) -> Iterator[Problem]:
    for slug, provider in catalog.spec.providers.items():
        url = provider.base_url
        if url and url.startswith("http://") and reach(url) is Reach.PUBLIC and not provider.allow_http:
            message = "http:// to a public address sends keys and prompts in clear; use https://"
            yield catalog.source.problem(
                ("providers", slug, "base_url"), f"{message}, or set allow_http: true"
            )


def _provider_keys(catalog: Catalog) -> Iterator[Problem]:
    for slug, provider in catalog.spec.providers.items():
        for index, key in enumerate(provider.keys):
            if key in provider.keys[:index]:
                yield catalog.source.problem(("providers", slug, "keys", index), f"{key} is listed twice")
        for name in provider.headers:
            loc: Loc = ("providers", slug, "headers", name)
            if name.lower() in _KEY_HEADERS:
                yield catalog.source.problem(
                    loc, "this header carries a key; name the key's variable in `keys`"
                )
            elif not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):  # RFC 9110, token
                yield catalog.source.problem(loc, "not a valid header name")


def _endpoint_fields(catalog: Catalog) -> Iterator[Problem]:
    for loc, offer, provider in offers(catalog):
        if provider.type == "ion" and not isinstance(offer, EndpointSpec):
            yield catalog.source.problem((*loc, "provider"), "the engine inside serves listed models only")
        if not isinstance(offer, EndpointSpec):
            continue
        if provider.type == "ion" and offer.weights is None and not _is_written(catalog, (*loc, "weights")):
            yield catalog.source.problem(loc, "an endpoint of type ion needs weights")
        if provider.type == "litellm" and offer.model is None and not _is_written(catalog, (*loc, "model")):
            yield catalog.source.problem(loc, f"needs model: the name that {offer.provider} has for it")
        for field in _ION_FIELDS if provider.type != "ion" else ():
            if field in offer.model_fields_set:
                message = f"only endpoints of type ion have {field}; '{offer.provider}' is {provider.type}"
                yield catalog.source.problem((*loc, field), message)


def _devices(catalog: Catalog) -> Iterator[Problem]:
    for loc, offer, _ in offers(catalog):
        if not isinstance(offer, EndpointSpec):
            continue
        for field in _PRECISIONS:
            if getattr(offer, field) == "fp8" and (offer.device == "cpu" or offer.numerics == "exact"):
                yield catalog.source.problem((*loc, field), "fp8 is computed on a GPU alone")
        if offer.device != "cuda":
            continue
        if offer.numerics == "exact":
            yield catalog.source.problem((*loc, "device"), "numerics exact is computed on the CPU alone")
        if offer.kv_tier is not None and offer.kv_tier.path is not None:
            message = "on a GPU the second KV tier is memory: leave kv_tier.path out"
            yield catalog.source.problem((*loc, "device"), message)


def _options(catalog: Catalog) -> Iterator[Problem]:
    places: list[tuple[Loc, ProviderType, dict[str, Any]]] = [
        (("providers", slug), spec.type, spec.options) for slug, spec in catalog.spec.providers.items()
    ]
    places += [(loc, provider.type, offer.options) for loc, offer, provider in offers(catalog)]
    for loc, kind, options in places:
        what = f"option of type {kind}"
        yield from problems_in(OPTIONS[kind], options, (*loc, "options"), catalog.source, what)


def _deadlines(catalog: Catalog) -> Iterator[Problem]:
    for loc, offer, provider in offers(catalog):
        timeouts = timeouts_of(catalog, provider, offer)
        for name in ("connect", "first_token", "inter_token"):
            seconds = getattr(timeouts, f"{name}_s")
            is_own = name in offer.timeouts.model_fields_set or "total" in offer.timeouts.model_fields_set
            if seconds > timeouts.total_s and is_own:
                message = f"{name} ({seconds:g} s) is longer than total ({timeouts.total_s:g} s)"
                yield catalog.source.problem((*loc, "timeouts"), message)


def _same_endpoint_twice(catalog: Catalog) -> Iterator[Problem]:
    for name, model in catalog.spec.models.items():
        first: dict[tuple[str, ...], int] = {}
        for index, offer in enumerate(model.endpoints):
            if offer.provider not in catalog.spec.providers:
                continue
            what = offer.weights or upstream_name(name, offer)
            level = offer.numerics or offer.service_tier or ""
            where = (offer.device or "auto", offer.precision or "auto")
            formats = (offer.head_precision or "bf16", offer.kv_precision or "bf16")
            same = (offer.provider, what, level, *where, *formats)
            if same in first:
                message = f"the same endpoint as endpoints[{first[same]}]: provider and model are equal"
                yield catalog.source.problem(("models", name, "endpoints", index), message)
            first.setdefault(same, index)


def _models_lead_somewhere(catalog: Catalog) -> Iterator[Problem]:
    for name, model in catalog.spec.models.items():
        written = catalog.source.data["models"][name]  # what is there but not in the model was wrong
        if not model.endpoints and not model.fallbacks and not _offers_something(written):
            yield catalog.source.problem(("models", name), "needs endpoints, or fallbacks")


def _offers_something(entry: Any) -> bool:
    return isinstance(entry, dict) and bool(entry.get("endpoints") or entry.get("fallbacks"))


def _names_are_distinct(catalog: Catalog) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for name in catalog.spec.models:
        if (other := first.setdefault(name.casefold(), name)) != name:
            yield catalog.source.problem(
                ("models", name), f"differs from '{other}' only in upper and lower case"
            )
    for alias in catalog.spec.aliases:
        other = first.setdefault(alias.casefold(), alias)
        if other in catalog.spec.models:
            yield catalog.source.problem(("aliases", alias), f"'{other}' is a model already")
        elif other != alias:
            yield catalog.source.problem(("aliases", alias), f"differs from '{other}' only in case")


def _globs(catalog: Catalog) -> Iterator[Problem]:
    for glob, pattern in catalog.spec.patterns.items():
        if "*" not in glob or any(c.isspace() for c in glob):
            message = "a pattern needs a * and no spaces, such as anthropic/*; list other names under models"
            yield catalog.source.problem(("patterns", glob), message)
        for placeholder in _PLACEHOLDER.findall(pattern.model or ""):
            if placeholder not in _PLACEHOLDERS:
                message = f"unknown placeholder {{{placeholder}}}; known: {{model}}, {{name}}, {{author}}"
                yield catalog.source.problem(("patterns", glob, "model"), message)


def _group_members(catalog: Catalog) -> Iterator[Problem]:
    spec = catalog.spec
    names = {name.casefold() for name in (*spec.models, *spec.aliases)}
    may_be_discovered = any(provider.discover for provider in spec.providers.values())
    groups: list[tuple[str, str, Iterable[tuple[str | int, str]]]]
    groups = [("groups", group, enumerate(members)) for group, members in spec.groups.items()]
    for group, shares in spec.splits.items():
        groups.append(("splits", group, ((member, member) for member in shares)))
        if group in spec.groups:
            yield catalog.source.problem(("splits", group), "is a group already")
    for section, group, members in groups:
        if group.casefold() in names:
            yield catalog.source.problem((section, group), "is a model or an alias already")
        for index, member in members:
            base = _without_variants(member, names)
            is_known = base.casefold() in names or best_match(spec.patterns, base) is not None
            if not is_known and not may_be_discovered:
                yield catalog.source.problem(
                    (section, group, index), f"no model, alias or pattern is '{member}'"
                )


def _without_variants(member: str, names: set[str]) -> str:
    while member.casefold() not in names and member.rpartition(":")[2].lower() in VARIANTS:
        member = member.rpartition(":")[0]
    return member


_NOT_IN_PRESETS = ("messages", "prompt", "input", "preset", "stream")
_ANY_MESSAGE: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": ""}]}


def _presets(catalog: Catalog) -> Iterator[Problem]:
    """What a preset says must be right on its own: its users cannot mend it."""
    for slug, fields in catalog.spec.presets.items():
        for name in fields:
            if name in _NOT_IN_PRESETS:
                yield catalog.source.problem(("presets", slug, name), "belongs to requests, not to presets")
        for name, message in cache_faults(fields):
            yield catalog.source.problem(("presets", slug, name), message)
        rest = {name: value for name, value in fields.items() if name not in _NOT_IN_PRESETS}
        try:
            validated(ChatRequest, {**_ANY_MESSAGE, **rest})
        except RequestError as error:
            yield catalog.source.problem(("presets", slug), error.message)


RULES: tuple[Rule, ...] = (
    _something_to_serve,
    _provider_fields,
    _provider_addresses,
    _provider_keys,
    _endpoint_fields,
    _devices,
    _options,
    _deadlines,
    _same_endpoint_twice,
    _models_lead_somewhere,
    _names_are_distinct,
    _globs,
    _group_members,
    _presets,
)
