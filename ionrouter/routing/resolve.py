"""Where could this name go: a look-up in the table, and variants of OpenRouter's kind. Pure and static."""

from __future__ import annotations

from dataclasses import replace

from ionrouter.routing.globs import best_match
from ionrouter.routing.identity import identity_of, subject_of
from ionrouter.routing.table import Endpoint, KnownModel, ModelRoute, Pattern, RoutingTable
from ionrouter.schema.request import WHOLE_KINDS, Kind
from ionrouter.schema.variants import VARIANTS

EMBEDDINGS = "embeddings"  # the output modality of models that make vectors
RERANK = "rerank"  # and of those that order documents

MAX_NAME = 256  # characters; as in spec.ModelName


def find_id(table: RoutingTable, name: str) -> str | None:
    """The configured model behind a name or alias: exactly, else ignoring case."""
    if name in table.models:
        return name
    if name in table.aliases:
        return table.aliases[name]
    return table.folded.get(name.casefold())


def is_configured(table: RoutingTable, name: str) -> bool:
    """Ask whether the file lists this very name: a model, an alias or a group."""
    return name in table.groups or find_id(table, name) is not None


def resolve(table: RoutingTable, name: str) -> ModelRoute | None:
    """The route for a model name without variants, or None if nothing configured fits.

    Order: model id, alias, both ignoring case, then patterns. A route from a pattern is made anew each time
    and has the name asked for as its id.
    """
    found = find_id(table, name) or name
    route = table.models.get(found)
    return route if route is not None else _by_pattern(table, found)


def serves(route: ModelRoute, kind: Kind) -> bool:
    """Ask whether a model is for this kind of request; of one that only a pattern leads to nobody knows."""
    if not route.declares_output:
        return True
    if kind in WHOLE_KINDS:
        return kind in route.output_modalities  # the modalities have the kinds' names
    return not set(route.output_modalities) <= {EMBEDDINGS, RERANK}


def split_variant(name: str, table: RoutingTable) -> tuple[str, tuple[str, ...]]:
    """Split `m:free:nitro` into ("m", ("free", "nitro")).

    A configured name is never split, so that `llama3:8b` and a listed `m:free` stay whole. A name that only a
    pattern serves stays whole, too, if the pattern leads to another router, which reads the suffix itself.
    """
    base, variants = name, list[str]()
    while not is_configured(table, base):
        head, colon, suffix = base.rpartition(":")
        if not colon or not head or suffix.lower() not in VARIANTS:
            break
        base, variants = head, [suffix.lower(), *variants]
    if not is_configured(table, base) and _leads_to_router(table, name):
        return name, ()
    return base, tuple(variants)


def _leads_to_router(table: RoutingTable, name: str) -> bool:
    return any(pattern.endpoint.provider.forward_provider for pattern in _patterns(table, name))


def _patterns(table: RoutingTable, name: str) -> tuple[Pattern, ...]:
    glob = best_match((pattern.glob for pattern in table.patterns), name)
    return tuple(pattern for pattern in table.patterns if pattern.glob == glob)


def _by_pattern(table: RoutingTable, name: str) -> ModelRoute | None:
    patterns = _patterns(table, name)
    if not patterns or len(name) > MAX_NAME or not name.isprintable() or any(c.isspace() for c in name):
        return None
    endpoints = tuple(_filled(pattern, name, number) for number, pattern in enumerate(patterns, 1))
    first = endpoints[0]
    return ModelRoute(
        id=name,
        name=name,
        endpoints=endpoints,
        context_length=first.context_length,
        input_modalities=tuple(sorted(first.input_modalities)),
        declares_output=False,
    )


def _filled(pattern: Pattern, name: str, number: int) -> Endpoint:
    endpoint = pattern.endpoint
    upstream_model = fill(endpoint.upstream_model, name)
    suffix = "" if number == 1 else f"#{number}"
    identity = identity_of(endpoint.provider, upstream_model, endpoint.key_variable)
    filled = replace(
        endpoint,
        id=f"{endpoint.provider.slug}/{name}{suffix}",
        identity=identity,
        model_id=name,
        upstream_model=upstream_model,
        subject=subject_of(identity, name),
    )
    known = pattern.known.get(upstream_model)
    return filled if known is None else _with_known(filled, known)


def _with_known(endpoint: Endpoint, known: KnownModel) -> Endpoint:
    is_priced = known.price is not None and endpoint.price_source == "unknown"
    return replace(
        endpoint,
        price=known.price.as_tier(endpoint.service_tier) if known.price and is_priced else endpoint.price,
        price_source="litellm" if is_priced else endpoint.price_source,
        context_length=endpoint.context_length or known.context_length,
        max_completion_tokens=endpoint.max_completion_tokens or known.max_completion_tokens,
        supported_parameters=endpoint.supported_parameters or known.supported_parameters,
        input_modalities=known.input_modalities,
    )


def fill(template: str, name: str) -> str:
    """Fill {model}, {name} and {author} from a name: `anthropic/claude` has author anthropic, name claude."""
    author, slash, rest = name.partition("/")
    parts = {"{model}": name, "{name}": rest if slash else name, "{author}": author if slash else ""}
    pieces, position = [], 0
    while position < len(template):
        mark = next((mark for mark in parts if template.startswith(mark, position)), None)
        pieces.append(parts[mark] if mark else template[position])
        position += len(mark) if mark else 1
    return "".join(pieces)
