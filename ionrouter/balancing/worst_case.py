"""What a request may cost at most, for limits. Prices of its candidates, its own bounds; no measurements."""

from __future__ import annotations

from collections.abc import Iterable

from ionrouter.balancing.cost import cost_of
from ionrouter.routing.table import Endpoint
from ionrouter.schema.request import InferenceRequest
from ionrouter.schema.usage import Usage

# Completion tokens of a request without max_tokens at an endpoint that states no limit of any kind.
UNBOUNDED_TOKENS = 16_384


def worst_case(endpoints: Iterable[Endpoint], request: InferenceRequest) -> float:
    """USD at the dearest endpoint: the estimated prompt, none of it cached, and the longest answer."""
    return max((_cost(endpoint, request) for endpoint in endpoints), default=0.0)


def _cost(endpoint: Endpoint, request: InferenceRequest) -> float:
    num_out = max_completion(endpoint, request) * _num_choices(request)
    plain = cost_of(endpoint.price, Usage(request.prompt_tokens, num_out)).total
    written = Usage(request.prompt_tokens, num_out, cache_write_tokens=request.prompt_tokens)
    return max(plain, cost_of(endpoint.price, written).total)  # writing a cache may cost more than reading


def max_completion(endpoint: Endpoint, request: InferenceRequest) -> int:
    """Bound one choice's completion tokens: the caller's cap, the endpoint's, what the context leaves."""
    if request.kind == "embeddings":
        return 0
    left = None
    if endpoint.context_length is not None:
        left = max(endpoint.context_length - request.prompt_tokens, 0)
    bounds = [b for b in (request.max_tokens, endpoint.max_completion_tokens, left) if b is not None]
    return min(bounds, default=UNBOUNDED_TOKENS)


def _num_choices(request: InferenceRequest) -> int:
    """Ask how many answers are computed: `n`, or more of them with `best_of`, for each of several prompts."""
    counts = [value for name in ("n", "best_of") if isinstance(value := request.body.get(name), int)]
    prompts = request.body.get("prompt")
    is_many = isinstance(prompts, list) and bool(prompts) and not isinstance(prompts[0], int)
    return max([1, *counts]) * (len(prompts) if is_many and isinstance(prompts, list) else 1)
