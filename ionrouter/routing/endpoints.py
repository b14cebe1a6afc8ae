"""From what routes.yaml says of an endpoint to the frozen Endpoint that requests read. One at a time."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import get_args

from ionrouter.routing.document import Catalog, is_local
from ionrouter.routing.identity import identity_of, subject_of
from ionrouter.routing.prices import with_long
from ionrouter.routing.spec import EndpointSpec, Offer, ProviderSpec
from ionrouter.routing.spec_prices import PricesSpec, TierPricesSpec, TokenPricesSpec
from ionrouter.routing.spec_traffic import BreakerSpec, TimeoutsSpec
from ionrouter.routing.table import (
    PART_PRICES,
    TOKEN_PRICES,
    BreakerRules,
    Endpoint,
    Expected,
    KnownModel,
    LocalModel,
    Price,
    PriceSource,
    Provider,
    ProviderType,
    Timeouts,
)
from ionrouter.routing.values import PROBE_IDLE_S, Reach, per_token, reach

THIS_MACHINE = "this-machine"  # the failure domain of everything that runs here
PROVIDER_TYPES: tuple[ProviderType, ...] = get_args(ProviderType)

# What the engine inside honours.
ION_PARAMETERS = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "n", "logprobs", "top_logprobs", "echo"),
        *("repetition_penalty", "presence_penalty", "frequency_penalty", "ignore_eos", "stop_token_ids"),
        *("max_tokens", "max_completion_tokens", "min_tokens", "top_a", "logit_bias", "prompt_logprobs"),
        *("response_format", "structured_outputs", "tools", "tool_choice", "parallel_tool_calls"),
    }
)


def compile_provider(slug: str, spec: ProviderSpec) -> Provider:
    """Freeze one provider; what is not said follows from where it runs."""
    keeps_nothing = spec.type in ("ion", "fake")  # a server nearby may pass prompts on: its owner must say
    return Provider(
        slug=slug,
        name=spec.name or slug,
        type=spec.type,
        base_url=spec.base_url,
        litellm_provider=spec.litellm_provider,
        headers=dict(spec.headers),
        forward_unknown=_forwards_unknown(spec),
        forward_provider=spec.forward_provider,
        forward_trace=spec.forward_trace,
        allow_http=spec.allow_http,
        data_collection=spec.data_collection or ("deny" if keeps_nothing else "allow"),
        zdr=keeps_nothing if spec.zdr is None else spec.zdr,
        privacy_policy_url=spec.privacy_policy_url,
        terms_of_service_url=spec.terms_of_service_url,
        status_page_url=spec.status_page_url,
        options=dict(spec.options),
        region=spec.region,
        discover=spec.discover,
        key_variables=tuple(spec.keys),
    )


def _forwards_unknown(spec: ProviderSpec) -> bool:
    """Servers nearby get fields that ionrouter does not know; the engine inside knows all that it honours."""
    if spec.forward_unknown is not None:
        return spec.forward_unknown
    return is_local(spec) and spec.type != "ion"


NOTHING_KNOWN = KnownModel()


@dataclass(frozen=True, slots=True)
class Draft:
    """One offer on its way to endpoints: one for each key. `known`: what a price list says of it."""

    model_id: str
    provider: Provider
    provider_spec: ProviderSpec
    offer: Offer
    upstream_model: str
    known: KnownModel = NOTHING_KNOWN
    known_from: PriceSource = "unknown"
    is_discovered: bool = False  # listed by the upstream, not by the file
    place: str = ""  # in routes.yaml, for messages at run time


def draft_of(catalog: Catalog, model_id: str, offer: Offer, provider: Provider, upstream_model: str) -> Draft:
    """Join an offer with what the upstream's own list or litellm's says of the model."""
    spec = catalog.spec.providers[offer.provider]
    draft = Draft(model_id, provider, spec, offer, upstream_model)
    for row in catalog.discovered.get(offer.provider, ()):
        if row.id == upstream_model:
            return replace(draft, known=row.known, known_from="upstream")
    if spec.litellm_provider is not None:
        known = catalog.prices.find(spec.litellm_provider, upstream_model)
        if known is not None:
            return replace(draft, known=known, known_from="litellm")
    return draft


def compile_offer(draft: Draft, catalog: Catalog, env: Mapping[str, str]) -> list[Endpoint]:
    """Freeze an offer: one endpoint per key variable, or one without. Ids are made unique later."""
    variables: Sequence[str | None] = draft.provider_spec.keys or [None]
    return [_endpoint(draft, catalog, env, variable) for variable in variables]


def _endpoint(draft: Draft, catalog: Catalog, env: Mapping[str, str], variable: str | None) -> Endpoint:
    offer, provider, known = draft.offer, draft.provider, draft.known
    price, source = price_of(draft)
    local = _local_model(draft, catalog.folder)
    is_unset = variable is not None and not env.get(variable, "").strip()
    caches = provider.type == "ion" or (price.cache_read is not None and price.cache_read < price.prompt)
    return Endpoint(
        id=f"{provider.slug}/{draft.model_id}",
        identity=identity_of(provider, _served(draft, local), variable),
        model_id=draft.model_id,
        provider=provider,
        upstream_model=draft.upstream_model,
        tag=_tag(provider, offer),
        price=price,
        context_length=offer.context_length or known.context_length,
        max_completion_tokens=offer.max_completion_tokens or known.max_completion_tokens,
        quantization=offer.quantization,
        supported_parameters=_parameters(draft),
        input_modalities=known.input_modalities,
        timeouts=timeouts_of(catalog, draft.provider_spec, offer),
        expected=Expected(offer.expected.ttft, offer.expected.throughput),
        domain=_domain(draft, variable),
        key_variable=variable,
        disabled=f"{variable} is unset" if is_unset else None,
        weight=offer.weight,
        upstream_stream=offer.upstream_stream,
        local=local,
        caches=caches,
        breaker=breaker_of(catalog, draft.provider_spec, offer),
        probe_s=_probe_s(draft, price, source),
        options=dict(offer.options),
        region=provider.region,
        price_source=source,
        service_tier=offer.service_tier,
    )


def _served(draft: Draft, local: LocalModel | None) -> str:
    """What the account is asked for; another level of service is measured apart."""
    tier = draft.offer.service_tier
    name = _computed(local) if local else draft.upstream_model
    return f"{name}#{tier}" if tier else name


def _computed(local: LocalModel) -> str:
    """What the engine inside runs: other numerics, another device or precision make another endpoint."""
    chosen = ((local.numerics, "fast"), (local.device, "auto"), (local.precision, "auto"))
    changes: list[str] = [value for value, default in chosen if value != default]
    for part, precision in (("head", local.head_precision), ("kv", local.kv_precision)):
        if precision != "bf16":
            changes.append(f"{part}-{precision}")  # "fp8" alone is the matrices'
    return "#".join([local.weights, *changes])


def price_of(draft: Draft) -> tuple[Price, PriceSource]:
    """The price in USD per token and where it comes from. What routes.yaml says wins, 0 included."""
    written = draft.offer.prices
    if written is not None and written.prompt is not None and written.completion is not None:
        return _per_token(written, None), "routes.yaml"
    if draft.known.price is not None:
        known = draft.known.price.as_tier(draft.offer.service_tier)
        return _per_token(written or PricesSpec(), known), draft.known_from
    if is_local(draft.provider_spec):
        return _per_token(written or PricesSpec(), None), "local"
    return _per_token(written or PricesSpec(), None), "unknown"


def _per_token(written: PricesSpec, known: Price | None) -> Price:
    """What the file says, for prompts of any length unless it says more; the rest as `known`."""
    usual = known or Price()
    price = _tier(written, _asking(usual, written.request) if written.request else usual)
    tiers = dict(price.tiers)
    for name, tier in (("flex", written.flex), ("priority", written.priority)):
        if tier is not None:
            tiers[name] = _tier(tier, tiers.get(name, replace(price, tiers=())))
    return replace(price, tiers=tuple(tiers.items()))


def _asking(price: Price, usd: float) -> Price:
    """The price with so many USD per request, however long its prompt and whatever its level of service."""
    long = None if price.long is None else _asking(price.long, usd)
    tiers = tuple((name, _asking(tier, usd)) for name, tier in price.tiers)
    return replace(price, request=usd, long=long, tiers=tiers)


def _tier(written: TierPricesSpec, known: Price) -> Price:
    price = _changed(known, _said(written))
    if written.long is None:
        return price
    return with_long(replace(price, long=None), [(written.long.above, _said(written.long))])


def _said(prices: TokenPricesSpec) -> dict[str, float | None]:
    """USD per token."""
    return {name: _optional(getattr(prices, name)) for name in (*TOKEN_PRICES, *PART_PRICES)}


def _changed(price: Price, said: Mapping[str, float | None]) -> Price:
    """The same changes to the price of prompts of every length."""
    return replace(price.changed(said), long=None if price.long is None else _changed(price.long, said))


def _optional(per_million: float | None) -> float | None:
    return None if per_million is None else per_token(per_million)


def _parameters(draft: Draft) -> frozenset[str]:
    if draft.offer.supported_parameters is not None:
        return frozenset(draft.offer.supported_parameters)
    return ION_PARAMETERS if draft.provider.type == "ion" else draft.known.supported_parameters


def _local_model(draft: Draft, folder: Path) -> LocalModel | None:
    offer = draft.offer
    if not isinstance(offer, EndpointSpec) or offer.weights is None:
        return None
    return LocalModel(
        weights=weights_path(offer.weights, folder),
        sha256=offer.sha256,
        numerics=offer.numerics or "fast",
        device=offer.device or "auto",
        precision=offer.precision or "auto",
        head_precision=offer.head_precision or "bf16",
        kv_precision=offer.kv_precision or "bf16",
        kv_memory_bytes=offer.kv_memory,
        max_running=offer.max_running or LocalModel("").max_running,
        max_mixed_step_ratio=offer.max_mixed_step_ratio,
        threads=offer.threads,
        kv_tier_bytes=offer.kv_tier.bytes if offer.kv_tier else 0,
        kv_tier_folder=_tier_folder(offer, folder),
        prefix_cache=offer.prefix_cache or "isolate",
        unload=offer.unload or "never",
        place=draft.place,
    )


def _tier_folder(offer: EndpointSpec, folder: Path) -> str:
    if offer.kv_tier is None or offer.kv_tier.path is None:
        return ""
    return os.path.normpath(folder / Path(offer.kv_tier.path).expanduser())


def weights_path(weights: str, folder: Path) -> str:
    """Make a path absolute, from the folder of routes.yaml; leave pypi:, hf: and random: as they are."""
    if weights.startswith(("pypi:", "hf:", "random:")):
        return weights
    return os.path.normpath(folder / Path(weights).expanduser())


def timeouts_of(catalog: Catalog, provider: ProviderSpec, offer: Offer) -> Timeouts:
    """Deadlines from the nearest level that sets them: endpoint, provider, defaults, built in."""
    levels = (offer.timeouts, provider.timeouts, catalog.spec.defaults.timeouts)
    built_in = Timeouts(total_s=catalog.spec.routing.total_timeout)
    return Timeouts(
        connect_s=_first(levels, "connect") or built_in.connect_s,
        first_token_s=_first(levels, "first_token") or built_in.first_token_s,
        inter_token_s=_first(levels, "inter_token") or built_in.inter_token_s,
        total_s=_first(levels, "total") or built_in.total_s,
    )


def breaker_of(catalog: Catalog, provider: ProviderSpec, offer: Offer) -> BreakerRules:
    """A breaker's rules from the nearest level that sets them; `cooldown` is `breaker.cooldown`, shorter."""
    own = offer.breaker
    if own.cooldown is None and offer.cooldown is not None:
        own = own.model_copy(update={"cooldown": offer.cooldown})
    levels = (own, provider.breaker, catalog.spec.defaults.breaker)
    built_in = BreakerRules()
    cooldown, failures = _first(levels, "cooldown"), _first(levels, "failures")
    return BreakerRules(
        max_failures=int(failures or built_in.max_failures),
        max_error_rate=_first(levels, "error_rate") or built_in.max_error_rate,
        cooldown_s=built_in.cooldown_s if cooldown is None else cooldown,
        max_cooldown_s=_first(levels, "max_cooldown") or built_in.max_cooldown_s,
    )


def _probe_s(draft: Draft, price: Price, source: PriceSource) -> float:
    """Idle seconds before a probe. Unasked only what is known to be free, and was listed by hand."""
    for level in (draft.offer, draft.provider_spec):
        if level.probe is not None:
            return level.probe
    is_free = price.prompt == price.completion == price.request == 0 and source in ("routes.yaml", "local")
    return PROBE_IDLE_S if is_free and draft.provider.type != "litellm" and not draft.is_discovered else 0.0


def _first(levels: Iterable[TimeoutsSpec | BreakerSpec], name: str) -> float | None:
    return next((value for level in levels if (value := getattr(level, name)) is not None), None)


def _domain(draft: Draft, variable: str | None) -> str:
    if (named := draft.offer.domain or draft.provider_spec.domain) is not None:
        return named
    spec, slug = draft.provider_spec, draft.provider.slug
    if spec.type == "ion" or (spec.base_url and reach(spec.base_url) is Reach.LOOPBACK):
        return THIS_MACHINE
    account = f"{slug}:{variable}" if len(spec.keys) > 1 else slug
    return f"{account}/{spec.region}" if spec.region else account


def _tag(provider: Provider, offer: Offer) -> str:
    quantization = None if offer.quantization == "unknown" else offer.quantization
    parts = [provider.slug, provider.region, quantization, offer.service_tier]
    return "/".join(part for part in parts if part)


def with_unique_ids(endpoints: Sequence[Endpoint], used: set[str]) -> tuple[Endpoint, ...]:
    """Tell endpoints of one model at one provider apart: by quantization if that is enough, else by #2, #3.

    `used` holds the ids of the whole table and grows. Those of one identity are told apart by their ids in
    statistics, too; of all others the statistics stay with what is measured, whatever its id.
    """
    shared = Counter(endpoint.id for endpoint in endpoints)
    alike = Counter((endpoint.id, endpoint.quantization) for endpoint in endpoints)
    identities = Counter(endpoint.identity for endpoint in endpoints)
    named: list[Endpoint] = []
    for endpoint in endpoints:
        name, quantization = endpoint.id, endpoint.quantization
        if quantization != "unknown" and alike[name, quantization] < shared[name]:
            name = f"{name}/{quantization}"
        candidates = chain([name], (f"{name}#{n}" for n in count(2)))
        unique = next(candidate for candidate in candidates if candidate not in used)
        used.add(unique)
        kept_as = endpoint.model_id if identities[endpoint.identity] == 1 else unique
        named.append(replace(endpoint, id=unique, subject=subject_of(endpoint.identity, kept_as)))
    return tuple(named)
