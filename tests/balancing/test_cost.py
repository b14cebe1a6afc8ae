"""The score: every term is there, and ascending score is the cheapest order."""

from __future__ import annotations

import itertools
import random

import pytest
from msgspec.structs import replace

from ionrouter.balancing.cost import MIN_SCORE, Outlook, cost_of, price_at_tier, score
from ionrouter.routing.table import PartPrices, Price
from ionrouter.schema.usage import CompletionParts, PromptParts, Usage

PLAIN = Outlook(
    fail_before=0.1,
    fail_after=0.2,
    price=0.003,
    price_fail=0.001,
    ttft_s=1.0,
    throughput=50.0,
    ok_s=4.0,
    fail_s=6.0,
)
VALUE = 0.0001


def test_the_score_is_the_formula() -> None:
    good = 0.003 + VALUE * 4
    waste = 0.1 / 0.9 * (VALUE * 6 + 0.001)
    got = score(PLAIN, VALUE)
    assert (got.good, got.waste, got.broken) == pytest.approx((good, waste, 0.2 * good))
    assert got.total == pytest.approx(good + waste + 0.2 * good)


@pytest.mark.parametrize(
    "worse",
    [
        {"price": 0.004},
        {"ok_s": 5.0},
        {"fail_before": 0.2},
        {"fail_after": 0.3},
        {"fail_s": 7.0},
        {"price_fail": 0.002},
    ],
)
def test_every_term_makes_the_score_worse(worse: dict[str, float]) -> None:
    assert score(replace(PLAIN, **worse), VALUE).total > score(PLAIN, VALUE).total


def test_time_costs_what_its_value_says() -> None:
    free = score(PLAIN, 0.0)
    assert free.good == 0.003
    assert score(PLAIN, 0.01).good == pytest.approx(0.003 + 0.04)
    assert score(PLAIN, 0.01).waste == pytest.approx(0.1 / 0.9 * (0.06 + 0.001))


def test_the_loss_from_a_broken_answer_may_be_stated() -> None:
    assert score(PLAIN, VALUE, loss=1.0).broken == pytest.approx(0.2)


def test_a_free_instant_endpoint_scores_the_floor_not_zero() -> None:
    nothing = Outlook(0.0, 0.0, 0.0, 0.0, 0.0, 50.0, 0.0, 0.0)
    assert score(nothing, VALUE).total == MIN_SCORE


def test_an_endpoint_that_always_fails_is_worst_not_a_division_by_zero() -> None:
    assert score(replace(PLAIN, fail_before=1.0), VALUE).total > 100 * score(PLAIN, VALUE).total


def test_a_hang_of_a_minute_in_a_tenth_of_the_calls_costs_what_it_costs() -> None:
    hanging = replace(PLAIN, fail_s=60.0, price_fail=0.0)
    assert score(hanging, VALUE).waste == pytest.approx(VALUE * 60 / 9)


def expected_cost(order: tuple[Outlook, ...]) -> float:
    """Dollars spent until one succeeds, computed by walking the tree of outcomes."""
    total, reached = 0.0, 1.0
    for o in order:
        ok, failed = o.price + VALUE * o.ok_s, VALUE * o.fail_s + o.price_fail
        total += reached * ((1 - o.fail_before) * ok + o.fail_before * failed)
        reached *= o.fail_before
    return total


@pytest.mark.parametrize("seed", range(30))
def test_ascending_score_is_the_cheapest_order_of_all(seed: int) -> None:
    """With breakage after commit left out, since it ends the walk."""
    rng = random.Random(seed)
    outlooks = [
        Outlook(
            fail_before=rng.uniform(0, 0.9),
            fail_after=0.0,
            price=rng.uniform(0, 0.01),
            price_fail=rng.uniform(0, 0.005),
            ttft_s=1.0,
            throughput=50.0,
            ok_s=rng.uniform(0.1, 60),
            fail_s=rng.uniform(0.1, 60),
        )
        for _ in range(5)
    ]
    # A request that every endpoint fails costs the same failures in any order: compare what order decides.
    best = min(itertools.permutations(outlooks), key=expected_cost)
    ours = tuple(sorted(outlooks, key=lambda o: score(o, VALUE).total))
    assert expected_cost(ours) == pytest.approx(expected_cost(best), rel=1e-9)


M = 1e-6


@pytest.mark.parametrize(
    ("price", "usage", "usd"),
    [
        # G107: no cached price means the prompt price, an explicit 0 stays 0.
        (Price(2 * M, 8 * M), Usage(1000, 100, cached_tokens=800), 0.0028),
        (Price(2 * M, 8 * M, cache_read=0.0), Usage(1000, 100, cached_tokens=800), 0.0012),
        # G111: zero is an answer.
        (Price(2 * M, 8 * M), Usage(0, 0), 0.0),
        # G112: completion includes reasoning.
        (Price(2 * M, 8 * M), Usage(0, 100, reasoning_tokens=60), 0.0008),
        # G117: more cached than prompt tokens never makes a negative cost.
        (Price(2 * M, 8 * M, cache_read=0.5 * M), Usage(100, 10, cached_tokens=900), 0.00053),
        (Price(2 * M, 8 * M, cache_write=4 * M), Usage(1000, 0, cache_write_tokens=500), 0.003),
        (Price(request=0.01), Usage(5, 5), 0.01),
    ],
)
def test_a_usage_is_billed_by_the_price(price: Price, usage: Usage, usd: float) -> None:
    assert cost_of(price, usage).total == pytest.approx(usd)


def test_a_long_prompt_makes_the_whole_request_dearer() -> None:
    price = Price(1.0, 2.0, request=0.5, long=Price(3.0, 5.0, request=0.5, cache_read=0.25), long_above=100)
    at, above = Usage(100, 10, cached_tokens=40), Usage(101, 10, cached_tokens=40)
    assert (cost_of(price, at).prompt, cost_of(price, at).completion) == (100.5, 20.0)
    assert (cost_of(price, above).prompt, cost_of(price, above).completion) == (61 * 3 + 10 + 0.5, 50.0)


PARTS = Price(1, 10, cache_read=0.1, cache_write=2).changed(
    {
        "cache_write_1h": 4,
        "audio": 5,
        "image_token": 3,
        "audio_output": 70,
        "image_output": 30,
        "reasoning": 6,
    }
)


@pytest.mark.parametrize(
    ("usage", "prompt", "completion"),
    [
        (Usage(100, 10), 100, 100),
        (Usage(100, 10, cached_tokens=20, cache_write_tokens=30), 50 + 2 + 60, 100),
        (Usage(100, 10, cache_write_tokens=30, cache_write_1h_tokens=30), 70 + 120, 100),
        (Usage(100, 10, cache_write_tokens=30, cache_write_1h_tokens=10), 70 + 40 + 40, 100),
        (Usage(100, 10, cache_write_tokens=5, cache_write_1h_tokens=10), 95 + 20, 100),
        (Usage(100, 10, prompt_parts=PromptParts(audio_tokens=40, image_tokens=10)), 50 + 200 + 30, 100),
        (Usage(100, 10, prompt_parts=PromptParts(audio_tokens=400, image_tokens=9)), 500, 100),
        (Usage(100, 10, cached_tokens=90, prompt_parts=PromptParts(audio_tokens=40)), 9 + 50, 100),
        (Usage(100, 10, reasoning_tokens=8), 100, 20 + 48),
        (
            Usage(100, 10, completion_parts=CompletionParts(audio_tokens=4, image_tokens=3)),
            100,
            30 + 280 + 90,
        ),
        (Usage(100, 10, reasoning_tokens=8, completion_parts=CompletionParts(audio_tokens=4)), 100, 48 + 140),
    ],
)
def test_what_a_usage_tells_apart_costs_its_own_price_once(
    usage: Usage, prompt: float, completion: float
) -> None:
    cost = cost_of(PARTS, usage)
    assert (cost.prompt, cost.completion) == pytest.approx((prompt, completion))


def test_a_part_without_a_price_of_its_own_costs_as_the_rest() -> None:
    used = Usage(100, 10, 0, 30, 8, PromptParts(9, 9), CompletionParts(1, 1), cache_write_1h_tokens=30)
    plain = Price(1, 10, cache_write=2)
    assert cost_of(Price(1, 10, cache_write=2, parts=PartPrices()), used) == cost_of(plain, used)


def test_parts_of_a_long_prompt_cost_what_they_cost_there() -> None:
    price = Price(1, 10, long=Price(2, 20, parts=PartPrices(reasoning=1)), long_above=50)
    assert cost_of(price, Usage(50, 10, reasoning_tokens=10)).total == pytest.approx(150)
    assert cost_of(price, Usage(51, 10, reasoning_tokens=10)).total == pytest.approx(112)


@pytest.mark.parametrize(
    ("tier", "prompt"),
    [(None, 1), ("default", 1), ("auto", 1), ("flex", 0.5), ("priority", 2), ("fast", 2), ("ultrafast", 9)],
)
def test_a_level_of_service_has_its_price(tier: str | None, prompt: float) -> None:
    price = Price(1, tiers=(("flex", Price(0.5)), ("priority", Price(2)), ("ultrafast", Price(9))))
    assert price_at_tier(price, tier).prompt == prompt


def test_an_endpoint_of_a_level_may_answer_as_usual() -> None:
    price = Price(1, tiers=(("flex", Price(0.5)), ("priority", Price(2)))).as_tier("priority")
    assert [price_at_tier(price, tier).prompt for tier in (None, "priority", "default")] == [2, 2, 1]
    assert Price(1).as_tier("flex") == Price(1)
