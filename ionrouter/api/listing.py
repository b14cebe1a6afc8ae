"""The query parameters of GET /models: filters, orders, pages. Pure functions of routes and a query."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ionrouter.api.cards import author_of, cheapest, context_length, enabled
from ionrouter.errors import RequestError
from ionrouter.routing.table import ModelRoute
from ionrouter.stats.published import Speed

DEFAULT_LIMIT, MAX_LIMIT = 500, 1000
PER_MILLION = 1_000_000
# Orders by the best median over a model's endpoints: of what, and which is best.
SPEEDS: dict[str, tuple[Speed, Callable[..., float | None]]] = {
    "latency-low-to-high": ("ttft_ms", min),
    "throughput-high-to-low": ("throughput", max),
}
POPULAR = ("most-popular", "top-weekly")  # orders by what models processed in the last week

Filter = Callable[[ModelRoute, str], bool]


def _names(value: str) -> set[str]:
    return {part.strip().lower() for part in value.split(",") if part.strip()}


def _prompt_price(model: ModelRoute) -> float:
    endpoint = cheapest(enabled(model) or model.endpoints)
    return endpoint.price.prompt * PER_MILLION if endpoint else 0.0


def _output_price(model: ModelRoute) -> float:
    endpoint = cheapest(enabled(model) or model.endpoints)
    return endpoint.price.completion * PER_MILLION if endpoint else 0.0


def _average_price(model: ModelRoute) -> float:
    return (_prompt_price(model) + _output_price(model)) / 2


def _supports(model: ModelRoute, value: str) -> bool:
    return any(_names(value) <= endpoint.supported_parameters for endpoint in enabled(model))


def _has_modalities(have: Sequence[str], value: str) -> bool:
    return value == "all" or _names(value) <= set(have)


def _matches(model: ModelRoute, value: str) -> bool:
    return value.lower() in f"{model.id} {model.name}".lower()


def _served_by(model: ModelRoute, value: str) -> bool:
    wanted = _names(value)
    return any({e.provider.slug.lower(), e.provider.name.lower()} & wanted for e in enabled(model))


# Query parameter -> whether a model passes.
FILTERS: dict[str, Filter] = {
    "q": _matches,
    "supported_parameters": _supports,
    "input_modalities": lambda model, v: _has_modalities(model.input_modalities, v),
    "output_modalities": lambda model, v: _has_modalities(model.output_modalities, v),
    "context": lambda model, v: (context_length(model) or 0) >= _number("context", v),
    "min_price": lambda model, v: _prompt_price(model) >= _number("min_price", v),
    "max_price": lambda model, v: _prompt_price(model) <= _number("max_price", v),
    "min_output_price": lambda model, v: _output_price(model) >= _number("min_output_price", v),
    "max_output_price": lambda model, v: _output_price(model) <= _number("max_output_price", v),
    "model_authors": lambda model, v: author_of(model.id).lower() in _names(v),
    "providers": _served_by,
    "distillable": lambda model, v: v not in ("true", "false") or bool(model.is_distillable) is (v == "true"),
    "zdr": lambda model, v: v != "true" or any(e.provider.zdr for e in enabled(model)),
}
DEFAULTS = {"output_modalities": "text"}  # OpenRouter's: who wants vectors or rankings asks for them


def select_models(models: Sequence[ModelRoute], query: Mapping[str, str]) -> list[ModelRoute]:
    """Keep the models that pass every filter, given or by default; parameters not known are ignored."""
    chosen = list(models)
    for name, passes in FILTERS.items():
        if value := query.get(name) or DEFAULTS.get(name):
            chosen = [model for model in chosen if passes(model, value)]
    return chosen


def sort_models(
    models: list[ModelRoute], order: str | None, told: Mapping[str, float | None]
) -> list[ModelRoute]:
    """Order the list; `told` are the models' figures where statistics have them (SPEEDS, POPULAR).

    Models without the figure asked for go last, an unknown order changes nothing.
    """
    keys: dict[str, Callable[[ModelRoute], float | None]] = {
        "pricing-low-to-high": _average_price,
        "pricing-high-to-low": lambda model: -_average_price(model),
        "context-high-to-low": lambda model: -(context_length(model) or 0),
        "newest": lambda model: -model.created,
        "latency-low-to-high": lambda model: told.get(model.id),
        "throughput-high-to-low": lambda model: _negated(told.get(model.id)),
        **dict.fromkeys(POPULAR, lambda model: _negated(told.get(model.id) or None)),
    }
    if order is None or order not in keys:
        return models
    figures = {model.id: keys[order](model) for model in models}
    return sorted(models, key=lambda m: (figures[m.id] is None, figures[m.id] or 0.0))


def page(models: Sequence[ModelRoute], query: Mapping[str, str]) -> tuple[Sequence[ModelRoute], int | None]:
    """Cut a page out if offset or limit is given; the second value is the next offset."""
    if "offset" not in query and "limit" not in query:
        return models, None
    offset = int(_number("offset", query.get("offset", "0")))
    limit = min(int(_number("limit", query.get("limit", str(DEFAULT_LIMIT)))), MAX_LIMIT)
    end = offset + max(limit, 1)
    return models[offset:end], end if end < len(models) else None


def page_by_ids(models: Sequence[ModelRoute], query: Mapping[str, str]) -> tuple[Sequence[ModelRoute], bool]:
    """Cut a page out as Anthropic's clients ask for one; and whether there are more in its direction."""
    before, after = (_place(models, query, name) for name in ("before_id", "after_id"))
    models = models[0 if after is None else after + 1 : before]
    if "limit" not in query:
        return models, False
    limit = min(max(int(_number("limit", query["limit"])), 1), MAX_LIMIT)
    is_backwards = before is not None and after is None
    return models[-limit:] if is_backwards else models[:limit], len(models) > limit


def _place(models: Sequence[ModelRoute], query: Mapping[str, str], name: str) -> int | None:
    if name not in query:
        return None
    for place, model in enumerate(models):
        if model.id == query[name]:
            return place
    raise RequestError(f"{name}: no model '{query[name][:200]}'", param=name)


def _negated(value: float | None) -> float | None:
    return None if value is None else -value


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise RequestError(f"{name}: should be a number that is not negative, got '{value[:40]}'", param=name)
    return number
