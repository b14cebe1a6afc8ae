"""Warnings on a valid catalog: what will work less well than its author may think. One function each."""

from __future__ import annotations

import datetime
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from ionrouter.errors import Problem
from ionrouter.routing import advice_addresses, advice_traffic
from ionrouter.routing.document import Catalog
from ionrouter.routing.endpoints import compile_provider, draft_of, price_of, weights_path
from ionrouter.routing.graph import compile_table
from ionrouter.routing.models import upstream_name
from ionrouter.routing.resolve import EMBEDDINGS, resolve
from ionrouter.routing.rules import offers
from ionrouter.routing.spec import EndpointSpec
from ionrouter.routing.table import PART_PRICES, TOKEN_PRICES, ModelRoute, RoutingTable
from ionrouter.routing.yaml_source import Loc
from ionrouter.schema.variants import VARIANTS

MAX_NAMES = 4  # names shown in one message
_PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


def find_problems(catalog: Catalog, env: Mapping[str, str], today: datetime.date) -> list[Problem]:
    """Run every check on a catalog without errors. `today` decides which models are retired."""
    table = compile_table(catalog, env)
    return [
        *find_local_problems(catalog, env, today),
        *(problem for advise in _BY_CATALOG for problem in advise(catalog)),
        *(problem for look in _BY_TABLE for problem in look(catalog, table)),
        *advice_traffic.find_problems(catalog, table),
    ]


def find_local_problems(catalog: Catalog, env: Mapping[str, str], today: datetime.date) -> list[Problem]:
    """Run the checks that look at one entry, which hold whatever else is wrong in the file."""
    return [
        *_unset_keys(catalog, env),
        *_ignored_proxies(catalog, env),
        *_retired_models(catalog, today),
        *(problem for advise in _BY_ENTRY for problem in advise(catalog)),
    ]


def _warn(catalog: Catalog, loc: Loc, message: str) -> Problem:
    return catalog.source.problem(loc, message, "warning")


def _unset_keys(catalog: Catalog, env: Mapping[str, str]) -> Iterator[Problem]:
    """One warning a variable, with all that it disables."""
    disabled = defaultdict[str, list[str]](list)
    for loc, offer, spec in offers(catalog):
        for variable in spec.keys:
            if not env.get(variable, "").strip():
                disabled[variable].append(f"{offer.provider}/{loc[1]}")
    for slug, spec in catalog.spec.providers.items():
        for variable in spec.keys if spec.discover else ():
            if not env.get(variable, "").strip():
                disabled[variable].append(f"discovery at {slug}")
    for variable, names in disabled.items():
        yield _warn(
            catalog, _place_of_key(catalog, variable), f"{variable} is unset; disabled: {_joined(names)}"
        )


def _ignored_proxies(catalog: Catalog, env: Mapping[str, str]) -> Iterator[Problem]:
    """Where nothing is let out but through a proxy, requests would time out without a word about it."""
    named = [name for name in _PROXIES if env.get(name, "").strip()]
    if not named or env.get("no_proxy", env.get("NO_PROXY", "")).strip() == "*":
        return
    for slug, spec in catalog.spec.providers.items():
        is_away = spec.type in ("openai", "litellm") and not (spec.base_url or "https://").lower().startswith(
            "http://"
        )
        if is_away and (not spec.keys or any(env.get(name, "").strip() for name in spec.keys)):
            message = f"{named[0]} is set, but proxies of the environment are ignored: it is reached directly"
            yield _warn(catalog, ("providers", slug), message)
            return  # one says it


def _place_of_key(catalog: Catalog, variable: str) -> Loc:
    for slug, provider in catalog.spec.providers.items():
        if variable in provider.keys:
            loc: Loc = ("providers", slug, "keys", provider.keys.index(variable))
            return loc if loc in catalog.source.lines else loc[:-1]
    return ("providers",)


def _joined(names: list[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _retired_models(catalog: Catalog, today: datetime.date) -> Iterator[Problem]:
    for loc, offer, spec in offers(catalog):
        owner = spec.litellm_provider
        model = upstream_name(str(loc[1]), offer) if isinstance(offer, EndpointSpec) else ""
        date = owner and catalog.prices.deprecated_on(owner, model)
        if not owner or not date:
            continue
        verb = "has been retired there since" if date <= today else "will be retired there on"
        successor = catalog.prices.successor_of(owner, model)
        hint = f"; named successor: {successor}" if successor else ""
        yield _warn(catalog, (*loc, "model"), f"{verb} {date}, by litellm's price list{hint}")


def _unpriced(catalog: Catalog) -> Iterator[Problem]:
    for loc, offer, spec in offers(catalog):
        if not isinstance(offer, EndpointSpec):
            continue  # a pattern's prices are known only with the model's name
        provider = compile_provider(offer.provider, spec)
        name = str(loc[1])
        draft = draft_of(catalog, name, offer, provider, upstream_name(name, offer))
        if price_of(draft)[1] == "unknown":
            message = (
                "no price here and none in litellm's list: weighed like the model's dearest, billed as 0; "
            )
            yield _warn(catalog, loc, f"{message}set prices: {{prompt, completion}}")


def _prices_per_token(catalog: Catalog) -> Iterator[Problem]:
    for loc, offer, _ in offers(catalog):
        for field in (*TOKEN_PRICES, *PART_PRICES):
            price = getattr(offer.prices, field, None)
            # The cheapest hosted models cost about 0.01 USD per million tokens.
            if price is not None and 0 < price < 1e-4:
                message = (
                    f"{price:g} USD per million tokens; prices are per million, this looks like per token"
                )
                yield _warn(catalog, (*loc, "prices", field), message)


def _litellm_names(catalog: Catalog) -> Iterator[Problem]:
    for slug, provider in catalog.spec.providers.items():
        owner = provider.litellm_provider
        if owner and catalog.prices.entries and not catalog.prices.is_provider(owner):
            near = catalog.prices.similar_providers(owner)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            message = f"litellm's price list has no provider '{owner}'{hint}"
            yield _warn(catalog, ("providers", slug, "litellm_provider"), message)


def _doubled_prefix(catalog: Catalog) -> Iterator[Problem]:
    for loc, offer, spec in offers(catalog):
        model, owner = getattr(offer, "model", None), spec.litellm_provider
        if not model or not owner or not model.startswith(f"{owner}/"):
            continue
        find, short = catalog.prices.find, model.removeprefix(f"{owner}/")
        if find(owner, short) is not None and f"{owner}/{model}" not in catalog.prices.entries:
            message = f"write '{short}': the prefix {owner}/ is added from litellm_provider"
            yield _warn(catalog, (*loc, "model"), message)


def _missing_weights(catalog: Catalog) -> Iterator[Problem]:
    for loc, offer, _ in offers(catalog):
        weights = getattr(offer, "weights", None)
        if weights and not weights.startswith(("pypi:", "hf:", "random:")):
            path = weights_path(weights, catalog.folder)
            if not os.path.exists(path):
                yield _warn(catalog, (*loc, "weights"), f"no file {path}")
            elif not (os.path.isfile(path) or os.path.isdir(path)):
                yield _warn(catalog, (*loc, "weights"), f"neither a file nor a folder: {path}")


def _unused_providers(catalog: Catalog) -> Iterator[Problem]:
    used = {offer.provider for _, offer, _ in offers(catalog)}
    for slug, provider in catalog.spec.providers.items():
        if slug not in used and not provider.discover:
            yield _warn(catalog, ("providers", slug), "no model and no pattern uses this provider")


def _odd_fallbacks(catalog: Catalog) -> Iterator[Problem]:
    for name, model in catalog.spec.models.items():
        for index, fallback in enumerate(model.fallbacks):
            loc: Loc = ("models", name, "fallbacks", index)
            if catalog.spec.aliases.get(fallback, fallback) == name:
                yield _warn(catalog, loc, "a model that falls back to itself; ignored")
            elif fallback in model.fallbacks[:index]:
                yield _warn(catalog, loc, f"'{fallback}' is listed twice; the first counts")


def _mixed_vectors(catalog: Catalog) -> Iterator[Problem]:
    """Vectors of several models under one name: nobody can compare them, and an index does not notice."""
    spec = catalog.spec
    models = {name: spec.models.get(name) for name in spec.models}
    models |= {alias: spec.models.get(name) for alias, name in spec.aliases.items()}
    makers = {
        name: model for name, model in models.items() if model and EMBEDDINGS in model.output_modalities
    }
    for name, model in spec.models.items():
        for index, fallback in enumerate(model.fallbacks if name in makers else ()):
            if fallback in makers and makers[fallback] is not model:
                message = (
                    f"vectors of '{fallback}' cannot be compared with those of '{name}': an index gets both"
                )
                yield _warn(catalog, ("models", name, "fallbacks", index), message)
    for name, members in spec.groups.items():
        several = list({id(makers[member]): member for member in members if member in makers}.values())
        if len(several) > 1:
            message = f"vectors of {_joined(several)} cannot be compared, and each request gets either's"
            yield _warn(catalog, ("groups", name), message)


def _variant_names(catalog: Catalog) -> Iterator[Problem]:
    for section in ("models", "aliases"):
        for name in getattr(catalog.spec, section):
            suffix = name.rpartition(":")[2]
            if ":" in name and VARIANTS.get(suffix):
                message = f"a name of its own: ':{suffix}' will not choose endpoints by that rule here"
                yield _warn(catalog, (section, name), message)


def _false_redundancy(catalog: Catalog, table: RoutingTable) -> Iterator[Problem]:
    """Several ways, one fate: every endpoint of a model and of its fallbacks in one failure domain."""
    for model in table.models.values():
        if model.id not in catalog.spec.models:
            continue
        reached = [endpoint for route in _with_fallbacks(table, model) for endpoint in route.endpoints]
        domains = {endpoint.domain for endpoint in reached}
        if len(reached) > 1 and len(domains) == 1:
            message = f"all {len(reached)} endpoints, fallbacks included, are in failure domain "
            yield _warn(catalog, ("models", model.id), f"{message}'{domains.pop()}': they fail together")


def _with_fallbacks(table: RoutingTable, model: ModelRoute) -> list[ModelRoute]:
    routes = [resolve(table, name) for name in model.fallbacks]
    return [model, *(route for route in routes if route is not None)]


def _dead_ends(catalog: Catalog, table: RoutingTable) -> Iterator[Problem]:
    """Models that only fall back, and whose fallbacks have no endpoint either."""
    for model in table.models.values():
        if not any(route.endpoints for route in _with_fallbacks(table, model)):
            yield _warn(catalog, ("models", model.id), "neither this model nor a fallback has an endpoint")


_Advice = tuple[Callable[[Catalog], Iterator[Problem]], ...]


def _addresses(catalog: Catalog) -> Iterator[Problem]:
    for loc, message in advice_addresses.advise(catalog):
        yield _warn(catalog, loc, message)


_BY_ENTRY: _Advice = (
    _addresses,
    _unpriced,
    _prices_per_token,
    _litellm_names,
    _doubled_prefix,
    _missing_weights,
)
_BY_CATALOG: _Advice = (_unused_providers, _odd_fallbacks, _mixed_vectors, _variant_names)
_BY_TABLE: tuple[Callable[[Catalog, RoutingTable], Iterator[Problem]], ...] = (_false_redundancy, _dead_ends)
