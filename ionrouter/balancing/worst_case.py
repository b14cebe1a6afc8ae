"""What a request may cost at most, for limits. Prices of its candidates, its own bounds; no measurements."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from ionrouter.balancing.cost import cost_of, price_at_tier
from ionrouter.balancing.options import COUNTS, LENGTHS
from ionrouter.balancing.prompt_bound import most_prompt_tokens, most_search_units
from ionrouter.routing.table import Endpoint, Price
from ionrouter.schema.request import WHOLE_KINDS, InferenceRequest
from ionrouter.schema.usage import Usage

# Completion tokens of a request without max_tokens at an endpoint that states no limit of any kind.
UNBOUNDED_TOKENS = 16_384
# Fields with others in them, at Gemini, Ollama and TGI.
_GROUPS = frozenset({"generation_config", "generationconfig", "options", "parameters"})

_PICTURES = frozenset({"image", "video", "file"})  # what may be counted in tokens of images


def worst_case(endpoints: Iterable[Endpoint], request: InferenceRequest, num_at_once: int = 1) -> float:
    """USD at the dearest endpoint: the longest prompt, none of it cached, and the longest answer.

    `num_at_once` endpoints may be asked beside each other: the dearest ones together.
    """
    num_in = most_prompt_tokens(request)
    costs = sorted((_cost(endpoint, request, num_in) for endpoint in endpoints), reverse=True)
    return sum(costs[:num_at_once])


def _cost(endpoint: Endpoint, request: InferenceRequest, num_in: int) -> float:
    """USD at one endpoint for at most `num_in` prompt tokens: a line in them until the context is full.

    Nobody knows how few they are, so the dearest split of the context counts: all prompt, or all answer.
    """
    num_prompts, context = _num_prompts(request), endpoint.context_length
    most = num_in if context is None else min(num_in, context * num_prompts)
    cap = max_completion(endpoint, request)
    least = 0 if context is None else min(most, (context - cap) * num_prompts)
    usual = endpoint.price  # an answer may tell that it was served as usual, whatever was asked for
    tiers = {tier for name, tier in usual.tiers if name == "default"} | {_asked_price(endpoint, request)}
    costs = []
    for price in (_dearest(price, endpoint, request) for price in {usual, *tiers}):
        splits = {least, most, *(start for start in _starts(price) if least < start < most)}
        costs += [_cost_of_split(price, endpoint, request, split, cap) for split in splits]
    return max(costs)


def _asked_price(endpoint: Endpoint, request: InferenceRequest) -> Price:
    asked = request.body.get("service_tier")
    return price_at_tier(endpoint.price, asked if isinstance(asked, str) else None)


def _dearest(price: Price, endpoint: Endpoint, request: InferenceRequest) -> Price:
    """The price with each side at its dearest part's, of those that the request may bring about."""
    long = None if price.long is None else _dearest(price.long, endpoint, request)
    if price.parts is None:
        return price if long is price.long else dataclasses.replace(price, long=long)
    parts, prompts = price.parts, [price.prompt]
    prompts += [parts.audio or 0.0] if "audio" in request.input_modalities else []
    prompts += [parts.image_token or 0.0] if request.input_modalities & _PICTURES else []
    writes = [price.prompt if price.cache_write is None else price.cache_write]
    if parts.cache_write_1h is not None and _keeps_for_an_hour(
        (request.body, request.preferences.options, endpoint.options)
    ):
        writes.append(parts.cache_write_1h)
    outs = (price.completion, parts.reasoning, parts.audio_output, parts.image_output)
    return dataclasses.replace(
        price,
        prompt=max(prompts),
        cache_write=max(writes),
        completion=max(usd for usd in outs if usd is not None),
        parts=None,
        long=long,
    )


def _keeps_for_an_hour(value: Any) -> bool:
    """Ask whether any part of a request is to be kept in the cache for longer than usual."""
    if isinstance(value, Mapping):
        return value.get("ttl") == "1h" or any(map(_keeps_for_an_hour, value.values()))
    return isinstance(value, list | tuple) and any(map(_keeps_for_an_hour, value))


def _starts(price: Price) -> Iterator[int]:
    """Prompt lengths from which on a request costs more."""
    while price.long is not None:
        yield price.long_above + 1
        price = price.long


def _cost_of_split(
    price: Price, endpoint: Endpoint, request: InferenceRequest, num_in: int, cap: int
) -> float:
    num_prompts = _num_prompts(request)
    num_out = cap * num_prompts
    if endpoint.context_length is not None:
        num_out = min(num_out, endpoint.context_length * num_prompts - num_in)
    num_out *= _num_choices(endpoint, request)
    plain = Usage(num_in, num_out, search_units=most_search_units(request))
    written = replace(plain, cache_write_tokens=num_in)  # which may cost more than reading
    return max(cost_of(price, usage).total for usage in (plain, written))


def max_completion(endpoint: Endpoint, request: InferenceRequest) -> int:
    """Bound one choice's completion tokens: the caller's cap, the endpoint's, the context."""
    if request.kind in WHOLE_KINDS:
        return 0
    limits = (_asked(endpoint, request), endpoint.max_completion_tokens, endpoint.context_length)
    unbounded = UNBOUNDED_TOKENS + _thinking_tokens(request)
    return min((limit for limit in limits if limit is not None), default=unbounded)


def _asked(endpoint: Endpoint, request: InferenceRequest) -> int | None:
    """The caller's cap, or a higher one under another name that the endpoint gets; None: no bound."""
    if request.max_tokens is None:
        return None
    others: list[Any] = [value for name, value in _sent_unread(endpoint, request) if name in LENGTHS]
    if not all(isinstance(value, int) and value >= 0 for value in others):
        return None  # -1 is no limit
    return int(max([request.max_tokens, *others]))


def _thinking_tokens(request: InferenceRequest) -> int:
    """Thoughts that were asked for by their number, which come beside the answer."""
    reasoning = request.body.get("reasoning")
    budget = reasoning.get("max_tokens") if isinstance(reasoning, Mapping) else None
    return budget if isinstance(budget, int) else 0


def _num_choices(endpoint: Endpoint, request: InferenceRequest) -> int:
    """Ask how many answers are computed for each prompt: `n`, or more of them with `best_of`."""
    counts = [value for name in ("n", "best_of") if isinstance(value := request.body.get(name), int)]
    others = [value for name, value in _sent_unread(endpoint, request) if name in COUNTS]
    return max([1, *counts, *(value for value in others if isinstance(value, int))])


def _sent_unread(endpoint: Endpoint, request: InferenceRequest) -> Iterator[tuple[str, Any]]:
    """What goes to the endpoint though the router knows no such field: names in lower case, groups opened."""
    for name, value in request.body.items():
        if not endpoint.provider.forward_unknown and name not in endpoint.supported_parameters:
            continue
        lowered = name.lower()
        if lowered in _GROUPS and isinstance(value, Mapping):
            yield from ((str(inner).lower(), item) for inner, item in value.items())
        elif name not in ("max_tokens", "max_completion_tokens"):  # one of them is sent, and that is read
            yield lowered, value


def _num_prompts(request: InferenceRequest) -> int:
    """Ask how many prompts there are, each with a context and an answer of its own."""
    name = {"embeddings": "input", "rerank": "documents"}.get(request.kind, "prompt")
    prompts = request.body.get(name)
    is_many = isinstance(prompts, list) and bool(prompts) and not isinstance(prompts[0], int)
    return len(prompts) if is_many and isinstance(prompts, list) else 1
