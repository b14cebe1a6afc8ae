"""What a request may cost at most, for limits. Prices of its candidates, its own bounds; no measurements."""

from __future__ import annotations

from collections.abc import Iterable

from ionrouter.balancing.cost import cost_of
from ionrouter.balancing.prompt_bound import most_prompt_tokens
from ionrouter.routing.table import Endpoint
from ionrouter.schema.request import WHOLE_KINDS, InferenceRequest
from ionrouter.schema.usage import Usage

# Completion tokens of a request without max_tokens at an endpoint that states no limit of any kind.
UNBOUNDED_TOKENS = 16_384


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
    splits = {most, 0 if context is None else min(most, (context - cap) * num_prompts)}
    return max(_cost_of_split(endpoint, request, split, cap) for split in splits)


def _cost_of_split(endpoint: Endpoint, request: InferenceRequest, num_in: int, cap: int) -> float:
    num_prompts = _num_prompts(request)
    num_out = cap * num_prompts
    if endpoint.context_length is not None:
        num_out = min(num_out, endpoint.context_length * num_prompts - num_in)
    num_out *= _num_choices(request)
    plain = cost_of(endpoint.price, Usage(num_in, num_out)).total
    written = Usage(num_in, num_out, cache_write_tokens=num_in)
    return max(plain, cost_of(endpoint.price, written).total)  # writing a cache may cost more than reading


def max_completion(endpoint: Endpoint, request: InferenceRequest) -> int:
    """Bound one choice's completion tokens: the caller's cap, the endpoint's, the context."""
    if request.kind in WHOLE_KINDS:
        return 0
    limits = (request.max_tokens, endpoint.max_completion_tokens, endpoint.context_length)
    return min((limit for limit in limits if limit is not None), default=UNBOUNDED_TOKENS)


def _num_choices(request: InferenceRequest) -> int:
    """Ask how many answers are computed for each prompt: `n`, or more of them with `best_of`."""
    counts = [value for name in ("n", "best_of") if isinstance(value := request.body.get(name), int)]
    return max([1, *counts])


def _num_prompts(request: InferenceRequest) -> int:
    """Ask how many prompts there are, each with a context and an answer of its own."""
    name = {"embeddings": "input", "rerank": "documents"}.get(request.kind, "prompt")
    prompts = request.body.get(name)
    is_many = isinstance(prompts, list) and bool(prompts) and not isinstance(prompts[0], int)
    return len(prompts) if is_many and isinstance(prompts, list) else 1
