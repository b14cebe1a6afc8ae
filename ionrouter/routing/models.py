"""From the sections of a catalog to the table's models, providers and patterns. Knows no graph.

Fallbacks are copied as written here; graph.py puts them in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ionrouter.routing.document import Catalog
from ionrouter.routing.endpoints import Draft, compile_offer, compile_provider, draft_of, with_unique_ids
from ionrouter.routing.globs import precision
from ionrouter.routing.identity import account_of
from ionrouter.routing.spec import EndpointSpec, ModelSpec, PatternSpec
from ionrouter.routing.table import Endpoint, KnownModel, ModelRoute, Pattern, Provider
from ionrouter.routing.upstream_list import UpstreamModel
from ionrouter.routing.yaml_source import path_of


def compile_providers(catalog: Catalog) -> dict[str, Provider]:
    """All providers of the file, used or not."""
    return {slug: compile_provider(slug, spec) for slug, spec in catalog.spec.providers.items()}


def compile_models(catalog: Catalog, env: Mapping[str, str]) -> dict[str, ModelRoute]:
    """Models of the file, then discovered ones whose names are free."""
    providers, used = compile_providers(catalog), set[str]()
    routes = {}
    for name, spec in catalog.spec.models.items():
        endpoints = [
            endpoint
            for index, offer in enumerate(spec.endpoints)
            for endpoint in _endpoints(catalog, env, (name, index), spec, offer, providers)
        ]
        routes[name] = _route(name, spec, with_unique_ids(endpoints, used))
    for name, route in _discovered(catalog, env, providers).items():
        if name not in routes and name not in catalog.spec.aliases:
            routes[name] = replace(route, endpoints=with_unique_ids(route.endpoints, used))
    return routes


def upstream_name(model_id: str, offer: EndpointSpec) -> str:
    """The name to ask the provider for: what the entry says, else the model's own."""
    return offer.model or (offer.weights or "").rsplit("/", 1)[-1] or model_id


def _endpoints(
    catalog: Catalog,
    env: Mapping[str, str],
    at: tuple[str, int],
    spec: ModelSpec,
    offer: EndpointSpec,
    providers: Mapping[str, Provider],
) -> list[Endpoint]:
    """`at`: the model's name and which of its endpoints."""
    model_id, index = at
    draft = draft_of(catalog, model_id, offer, providers[offer.provider], upstream_name(model_id, offer))
    draft = replace(draft, place=path_of(("models", model_id, "endpoints", index)))
    return [
        replace(
            endpoint,
            context_length=offer.context_length or spec.context_length or endpoint.context_length,
            input_modalities=frozenset(spec.input_modalities),
        )
        for endpoint in compile_offer(draft, catalog, env)
    ]


def _route(name: str, spec: ModelSpec, endpoints: tuple[Endpoint, ...]) -> ModelRoute:
    contexts = [endpoint.context_length for endpoint in endpoints if endpoint.context_length]
    return ModelRoute(
        id=name,
        name=spec.name or name,
        endpoints=endpoints,
        created=spec.created,
        description=spec.description,
        context_length=spec.context_length or max(contexts, default=None),
        input_modalities=tuple(spec.input_modalities),
        output_modalities=tuple(spec.output_modalities),
        tokenizer=spec.tokenizer,
        instruct_type=spec.instruct_type,
        hugging_face_id=spec.hugging_face_id,
        strategy=spec.strategy,
        value_of_time=spec.value_of_time,
        listed_fallbacks=tuple(spec.fallbacks),
        is_distillable=spec.distillable,
    )


def with_fallbacks(
    route: ModelRoute, fallbacks: tuple[str, ...], paths: Mapping[str, tuple[str, ...]]
) -> ModelRoute:
    """The same route with its ordered fallbacks."""
    return replace(route, fallbacks=fallbacks, fallback_paths=dict(paths))


def _discovered(
    catalog: Catalog, env: Mapping[str, str], providers: Mapping[str, Provider]
) -> dict[str, ModelRoute]:
    routes: dict[str, ModelRoute] = {}
    for slug, rows in catalog.discovered.items():
        for row in rows:
            offer = EndpointSpec(provider=slug, model=row.id)
            spec = catalog.spec.providers[slug]
            draft = Draft(
                row.id, providers[slug], spec, offer, row.id, row.known, "upstream", is_discovered=True
            )
            found = _discovered_route(row, tuple(compile_offer(draft, catalog, env)))
            known = routes.get(row.id)
            routes[row.id] = found if known is None else _joined(known, found)
    return routes


def _joined(first: ModelRoute, second: ModelRoute) -> ModelRoute:
    return replace(first, endpoints=first.endpoints + second.endpoints)


def _discovered_route(row: UpstreamModel, endpoints: tuple[Endpoint, ...]) -> ModelRoute:
    return ModelRoute(
        id=row.id,
        name=row.name,
        endpoints=endpoints,
        created=row.created,
        description=row.description,
        context_length=row.known.context_length,
        input_modalities=row.input_modalities,
        output_modalities=row.output_modalities,
        declares_output=row.declares_output,
        tokenizer=row.tokenizer,
        instruct_type=row.instruct_type,
        hugging_face_id=row.hugging_face_id,
    )


def compile_patterns(catalog: Catalog, env: Mapping[str, str]) -> tuple[Pattern, ...]:
    """Patterns, most precise first; one entry for each key of the provider."""
    patterns = []
    for glob in sorted(catalog.spec.patterns, key=precision, reverse=True):
        spec = catalog.spec.patterns[glob]
        provider = compile_provider(spec.provider, catalog.spec.providers[spec.provider])
        draft = draft_of(catalog, glob, spec, provider, pattern_template(glob, spec, provider))
        known = _known_models(catalog, provider) if spec.prices is None else {}
        for endpoint in compile_offer(draft, catalog, env):
            account = account_of(provider, endpoint.key_variable)
            patterns.append(Pattern(glob, replace(endpoint, identity=account), known))
    return tuple(patterns)


def pattern_template(glob: str, spec: PatternSpec, provider: Provider) -> str:
    """How a pattern makes the provider's name for a model.

    Default: the part after the author for `author/*`, the whole name for others and for providers that are
    routers themselves.
    """
    if spec.model is not None:
        return spec.model
    is_author = glob.endswith("/*") and glob.count("*") == 1
    return "{name}" if is_author and not provider.forward_provider else "{model}"


def _known_models(catalog: Catalog, provider: Provider) -> dict[str, KnownModel]:
    if provider.litellm_provider is None:
        return {}
    find = catalog.prices.find
    names = [name for name, _ in catalog.prices.models_of(provider.litellm_provider)]
    return {name: known for name in names if (known := find(provider.litellm_provider, name)) is not None}
