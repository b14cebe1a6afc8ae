"""The one unit for health, latency and cost: expected dollars to a good answer. Arithmetic only.

    good  = price + value_of_time * T_ok                    a try that works
    waste = f/(1-f) * (value_of_time * T_fail + price_fail)  the tries that do not, before commit
    score = max(good + waste + m * L, 1e-9)                 m: breaks after commit, L: loss from that

Ascending score is the optimal order to try independent endpoints until one succeeds: swapping two
neighbours i, j pays iff good_j + waste_j < good_i + waste_i (exchange argument).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from msgspec import Struct

from ionrouter.routing.table import PartPrices, Price
from ionrouter.schema.usage import Cost, Usage

MIN_SCORE = 1e-9  # USD; keeps a free, instant endpoint's draw weight finite
PRIOR_FAIL_BEFORE = 0.02
PRIOR_FAIL_AFTER = 0.005
PSEUDO_REQUESTS = 20.0  # how many requests of evidence the two priors are worth
PRIOR_NUM_OUT = 300.0  # completion tokens of a request nobody has seen the like of
PRIOR_TTFT_S = 2.0
PRIOR_THROUGHPUT = 50.0  # tokens/s


class Outlook(Struct, frozen=True):
    """What is expected of one endpoint for one request. Shares in [0, 1), USD, seconds, tokens/s."""

    fail_before: float  # f
    fail_after: float  # m
    price: float
    price_fail: float
    ttft_s: float
    throughput: float
    ok_s: float  # T_ok
    fail_s: float  # T_fail


class Score(Struct, frozen=True):
    """The terms, for people, and their sum, for sorting. USD."""

    good: float
    waste: float
    broken: float
    total: float


def score(outlook: Outlook, value_of_time: float, loss: float | None = None) -> Score:
    """Weigh one endpoint; `value_of_time` in USD per second, `loss` of a broken answer defaults to `good`."""
    good = outlook.price + value_of_time * outlook.ok_s
    f = outlook.fail_before if outlook.fail_before < 0.999 else 0.999
    waste = f / (1 - f) * (value_of_time * outlook.fail_s + outlook.price_fail)
    broken = outlook.fail_after * (good if loss is None else loss)
    total = good + waste + broken
    return Score(good, waste, broken, total if total > MIN_SCORE else MIN_SCORE)


def cost_of(price: Price, usage: Usage) -> Cost:
    """Bill a usage, in USD. The prompt includes cached and cache-written tokens, the completion reasoning.

    Where a provider reports more cached tokens than prompt tokens the rest counts 0, never less. A ranking
    costs a request's price for each search unit.
    """
    if price.long is not None:
        price = price.at(usage.prompt_tokens)
    if price.parts is not None:
        return _cost_by_parts(price, price.parts, usage)
    cache_read = price.prompt if price.cache_read is None else price.cache_read
    cache_write = price.prompt if price.cache_write is None else price.cache_write
    plain = usage.prompt_tokens - usage.cached_tokens - usage.cache_write_tokens
    if plain < 0:
        plain = 0
    prompt = plain * price.prompt + usage.cached_tokens * cache_read + usage.cache_write_tokens * cache_write
    request = price.request if usage.search_units is None else price.request * usage.search_units
    return Cost(prompt=prompt + request, completion=usage.completion_tokens * price.completion)


def _cost_by_parts(price: Price, parts: PartPrices, usage: Usage) -> Cost:
    """The same where some tokens have prices of their own: those of a part are taken out of its side once.

    Audio and images of a prompt are taken out of what is neither cached nor written: no usage says which of
    them were.
    """
    asked, answered = usage.prompt_parts, usage.completion_parts
    written_1h = min(usage.cache_write_tokens, usage.cache_write_1h_tokens)
    of_prompt = ((parts.audio, asked.audio_tokens), (parts.image_token, asked.image_tokens))
    of_completion = (
        (parts.reasoning, usage.reasoning_tokens),
        (parts.audio_output, answered.audio_tokens),
        (parts.image_output, answered.image_tokens),
    )
    uncached = usage.prompt_tokens - usage.cached_tokens - usage.cache_write_tokens
    more = _more(max(uncached, 0), price.prompt, of_prompt)
    if parts.cache_write_1h is not None:
        cache_write = price.prompt if price.cache_write is None else price.cache_write
        more += written_1h * (parts.cache_write_1h - cache_write)
    plain = cost_of(replace(price, long=None, parts=None), usage)
    more_out = _more(usage.completion_tokens, price.completion, of_completion)
    return Cost(prompt=plain.prompt + more, completion=plain.completion + more_out)


def _more(num_tokens: int, usd: float, parts: Iterable[tuple[float | None, int]]) -> float:
    """USD that parts of so many tokens cost beyond the price of the others."""
    more, left = 0.0, num_tokens
    for own, count in parts:
        num = min(count, left)
        left -= num
        if own is not None:
            more += num * (own - usd)
    return more


# How callers name a level of service that a price list names otherwise.
_OTHER_NAMES = {"fast": "priority", "ultrafast": "priority", "standard": "default"}


def price_at_tier(price: Price, tier: str | None) -> Price:
    """The price of a level of service, as an answer or a request names it; the usual one where none is."""
    if tier is None or not price.tiers:
        return price
    return price.of_tier(tier) or price.of_tier(_OTHER_NAMES.get(tier)) or price
