"""Adding a model to routes.yaml for `ionrouter add`: fills in what litellm's price list knows."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from ionrouter.errors import ConfigError, Problem
from ionrouter.routing.atomic_file import replace_file
from ionrouter.routing.catalog import Catalog, loads
from ionrouter.routing.models import upstream_name
from ionrouter.routing.prices import PriceBook, read_price_book
from ionrouter.routing.splice import Text, scalar
from ionrouter.routing.table import PART_PRICES, TOKEN_PRICES, KnownModel, PartPrices, Price

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class NewEndpoint:
    """One endpoint to write: `model` is the provider's name for it."""

    provider: str
    model: str
    known: KnownModel | None = None


@dataclass(frozen=True, slots=True)
class Added:
    """What `add_model` did. Empty `endpoints`: everything was there already."""

    model_id: str
    endpoints: tuple[NewEndpoint, ...]
    is_new_model: bool
    warnings: tuple[Problem, ...] = ()  # what `check` has to say of the entry, e.g. that it is retired there

    @property
    def is_unchanged(self) -> bool:
        return not self.endpoints


def add_model(
    path: Path | str,
    model_id: str,
    provider: str | None = None,
    *,
    model: str | None = None,
    prices: PriceBook | None = None,
    env: Mapping[str, str] | None = None,
) -> Added:
    """Write an entry for a model, or an endpoint into an entry that is there; keeps every other byte.

    Without `provider`, every litellm provider of the file that litellm's list has the model for gets an
    endpoint. `model` is the provider's own name; default: found in the list, or `model_id` for openai
    servers. Running it twice changes nothing. Raises ConfigError and leaves the file alone if the provider is
    unknown, the name cannot be found, another entry of that provider is there, or the file has errors.
    """
    path = Path(path)
    raw = _read(path)
    book = read_price_book() if prices is None else prices
    text = raw.removeprefix(BOM).decode("utf-8", "strict")
    catalog = loads(text, path, env or {}, book)
    wanted = [_named(catalog, provider, model_id, model)] if provider else _everywhere(catalog, model_id)
    new = tuple(endpoint for endpoint in wanted if not _is_there(catalog, model_id, endpoint))
    added = Added(model_id, new, model_id not in catalog.spec.models)
    if new:
        changed = _write(Text.parse(text), added)
        after = loads(changed, path, env or {}, book)  # raises before anything is written
        _check(catalog, after, added)
        prefix = f"models.{model_id}."
        own = tuple(problem for problem in after.warnings if problem.path.startswith(prefix))
        added = replace(added, warnings=own)
        bom = BOM if raw.startswith(BOM) else b""
        replace_file(path, bom + changed.encode())
    return added


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None


def _named(catalog: Catalog, provider: str, model_id: str, model: str | None) -> NewEndpoint:
    spec = catalog.spec.providers.get(provider)
    if spec is None:
        near = difflib.get_close_matches(provider, catalog.spec.providers, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(catalog.spec.providers)}"
        raise ConfigError(f"no provider '{provider}' in {catalog.source.path.name}; {hint}")
    if spec.type == "ion":
        raise ConfigError(f"'{provider}' is the engine inside: write the entry by hand, it needs weights")
    owner = spec.litellm_provider
    if model is None and owner is not None:
        model = _upstream_name(catalog, owner, model_id)
    model = model or model_id
    return NewEndpoint(provider, model, catalog.prices.find(owner, model) if owner else None)


def _upstream_name(catalog: Catalog, owner: str, model_id: str) -> str:
    if catalog.prices.find(owner, model_id) is not None:
        return model_id
    found = catalog.prices.upstream_name(owner, model_id)
    if found is None:
        message = f"litellm's price list has no '{model_id}' at {owner}; say the provider's own name for it"
        raise ConfigError(message)
    return found


def _everywhere(catalog: Catalog, model_id: str) -> list[NewEndpoint]:
    found = []
    for slug, spec in catalog.spec.providers.items():
        name = spec.litellm_provider and catalog.prices.upstream_name(spec.litellm_provider, model_id)
        if name:
            found.append(_named(catalog, slug, model_id, name))
    if not found:
        raise ConfigError(
            f"no provider of the file has '{model_id}' in litellm's price list; name the provider"
        )
    return found


def _is_there(catalog: Catalog, model_id: str, new: NewEndpoint) -> bool:
    if model_id in catalog.spec.aliases:
        raise ConfigError(f"'{model_id}' is an alias of '{catalog.spec.aliases[model_id]}'")
    entry = catalog.spec.models.get(model_id)
    for index, offer in enumerate(entry.endpoints if entry else ()):
        if offer.provider != new.provider:
            continue
        if upstream_name(model_id, offer) == new.model:
            return True
        at = catalog.source.problem(("models", model_id, "endpoints", index), "")
        has = f"has provider '{new.provider}' already, as '{upstream_name(model_id, offer)}'"
        raise ConfigError(f"line {at.line}: {at.path} {has}; edit it there")
    return False


def _write(text: Text, added: Added) -> str:
    endpoints = [line for endpoint in added.endpoints for line in _endpoint_lines(endpoint)]
    if not added.is_new_model:
        return text.append(["models", added.model_id, "endpoints"], endpoints)
    lines = [f"{scalar(added.model_id)}:"]
    contexts = [e.known.context_length for e in added.endpoints if e.known and e.known.context_length]
    if contexts:
        lines.append(f"  context_length: {max(contexts)}")
    lines += ["  endpoints:", *(f"    {line}" for line in endpoints)]
    return text.append(["models"], lines, blank_before=True)


def _check(old: Catalog, new: Catalog, added: Added) -> None:
    """Hold that nothing but the new entry changed: an edit of text must not surprise."""
    models = dict(new.spec.models)
    entry = models.pop(added.model_id)
    if not added.is_new_model:
        kept = entry.endpoints[: len(entry.endpoints) - len(added.endpoints)]
        models[added.model_id] = old.spec.models[added.model_id].model_copy(update={"endpoints": kept})
    if new.spec.model_copy(update={"models": models}) != old.spec:
        raise ConfigError(f"cannot add '{added.model_id}' without changing other entries; add it by hand")


def _endpoint_lines(endpoint: NewEndpoint) -> list[str]:
    lines = [f"- provider: {scalar(endpoint.provider)}", f"  model: {scalar(endpoint.model)}"]
    if endpoint.known is not None and endpoint.known.price is not None:
        lines.append(f"  prices: {_flow(_per_million(endpoint.known.price))} # from litellm's price list")
    return lines


def _per_million(price: Price) -> dict[str, Any]:
    fields = {name: getattr(price, name) for name in TOKEN_PRICES}
    fields |= {name: getattr(price.parts or PartPrices(), name) for name in PART_PRICES}
    shown: dict[str, Any] = {name: _decimal(usd, 6) for name, usd in fields.items() if usd is not None}
    if price.request:
        shown["request"] = _decimal(price.request)
    if price.long is not None:
        long = {name: usd for name, usd in _per_million(price.long).items() if usd != shown.get(name)}
        shown["long"] = {"above": Decimal(price.long_above), **long}
    for name, tier in price.tiers:
        if name in ("flex", "priority"):  # the others have no place in the file
            others = {field: usd for field, usd in _per_million(tier).items() if usd != shown.get(field)}
            shown[name] = {field: usd for field, usd in others.items() if field != "request"}
    return shown


def _decimal(usd: float, digits: int = 0) -> Decimal:
    return Decimal(repr(usd)).scaleb(digits).normalize()


def _flow(fields: Mapping[str, Any]) -> str:
    parts = (f"{k}: {_flow(v) if isinstance(v, Mapping) else format(v, 'f')}" for k, v in fields.items())
    return "{ " + ", ".join(parts) + " }"
