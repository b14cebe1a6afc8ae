"""Select: order, draw, tiers, strategies, exploration and the last resort."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ionrouter.balancing.health import HealthBook
from ionrouter.balancing.plan import Plan
from ionrouter.balancing.screen import Subject, screen
from ionrouter.balancing.select import Scene, select
from ionrouter.balancing.strategies import MAX_WARMING
from ionrouter.errors import FailureClass, RequestError, UpstreamError
from ionrouter.routing.table import Endpoint, Expected, ModelRoute, Provider, RoutingSettings
from ionrouter.schema.load import EngineLoad
from ionrouter.schema.request import (
    InferenceRequest,
    Overrides,
    PercentileCutoffs,
    ProviderPreferences,
)
from ionrouter.schema.usage import Usage
from tests.support.routes import endpoint, price, request, route

NOW = 1000.0


def plan_of(
    *ends: Endpoint | ModelRoute,
    book: HealthBook | None = None,
    asked: InferenceRequest | None = None,
    rng: random.Random | None = None,
    now: float = NOW,
    **options: Any,
) -> Plan:
    routes = tuple(e for e in ends if isinstance(e, ModelRoute))
    own = tuple(e for e in ends if isinstance(e, Endpoint))
    scene = Scene(book or HealthBook(), RoutingSettings(**{"explore": 0.0, **options}), now)
    return select(
        (route("m", *own), *routes) if own else routes, asked or request(), scene, rng or random.Random(7)
    )


def ids(plan: Plan) -> list[str]:
    return [c.endpoint.id for c in plan.candidates]


def wishing(**wishes: Any) -> InferenceRequest:
    return request(stream=True, preferences=ProviderPreferences(**wishes))


def strategy(name: str, **more: Any) -> InferenceRequest:
    return request(overrides=Overrides(strategy=name), **more)


def first_picks(num: int, *ends: Endpoint, **more: Any) -> Counter[str]:
    rng = random.Random(7)
    return Counter(ids(plan_of(*ends, rng=rng, **more))[0] for _ in range(num))


def fast(name: str, ttft_s: float, throughput: float = 1e9, **more: Any) -> Endpoint:
    return endpoint(name, expected=Expected(ttft_s=ttft_s, throughput=throughput), **more)


def record(
    book: HealthBook, at: Endpoint, ttft_s: float, *, num: int = 1, total_s: float | None = None
) -> None:
    """Let an endpoint answer `num` streamed requests."""
    health = book.of(at)
    for _ in range(num):
        flight = health.begin(NOW - (total_s or ttft_s), stream=True)
        health.commit(NOW, flight, ttft_s)
        health.finish(NOW, flight, Usage(10, 100), (total_s or ttft_s) - ttft_s)
        health.end(flight)


# Expected cost.


def test_the_cheapest_expected_answer_is_first_and_the_rest_ascend() -> None:
    ends = [fast("slow", 30.0), fast("dear", 1.0, price=price(100, 100)), fast("good", 1.0)]
    plan = plan_of(*ends)
    scores = [c.score.total for c in plan.candidates]
    assert ids(plan)[0] == "good" and scores == sorted(scores)


def test_the_exchange_rate_between_time_and_money_decides() -> None:
    ends = [fast("cheap", 10.0, price=price(0, 1)), fast("quick", 1.0, price=price(0, 3))]
    # 300 tokens: 0.0003 against 0.0009 USD, 9 s apart.
    assert ids(plan_of(*ends))[0] == "quick"
    patient = request(overrides=Overrides(value_of_time=1e-6))
    assert ids(plan_of(*ends, asked=patient))[0] == "cheap"
    assert ids(plan_of(*ends, asked=request(overrides=Overrides(value_of_time=0.0))))[0] == "cheap"
    assert ids(plan_of(route("m", *ends, value_of_time=1e-6)))[0] == "cheap"


def test_within_the_spread_the_first_pick_is_drawn_by_inverse_square_of_the_score() -> None:
    ends = [fast("a", 10.0), fast("b", 12.0), fast("c", 13.0)]
    plan = plan_of(*ends)
    shares = {c.endpoint.id: c.share for c in plan.candidates}
    weights = {"a": 1 / 100, "b": 1 / 144}  # c is over 1.25 times the best
    assert shares == pytest.approx({"a": 144 / 244, "b": 100 / 244, "c": 0.0}, rel=1e-6)
    picks = first_picks(1500, *ends)
    assert picks["a"] / 1500 == pytest.approx(weights["a"] / sum(weights.values()), abs=0.04)
    assert picks["c"] == 0


def test_the_drawn_one_goes_first_and_fallbacks_stay_in_order() -> None:
    ends = [fast(name, 10.0 + i / 10) for i, name in enumerate("abcde")]
    for seed in range(30):
        got = ids(plan_of(*ends, rng=random.Random(seed)))
        assert got[1:] == sorted(got[1:]) and sorted(got) == list("abcde")


def test_the_same_seed_gives_the_same_plan() -> None:
    ends = [fast(name, 10.0 + i / 10) for i, name in enumerate("abcde")]
    assert plan_of(*ends, rng=random.Random(7)) == plan_of(*ends, rng=random.Random(7))


def test_failures_move_an_endpoint_back() -> None:
    book, ends = HealthBook(), [fast("flaky", 1.0), fast("solid", 2.0)]
    health = book.of(ends[0])
    for i in range(30):
        flight = health.begin(NOW, True)
        if i % 2:
            health.commit(NOW, flight, 1.0)
        else:
            health.fail(NOW, UpstreamError(FailureClass.TRANSIENT, "x"), 20.0, 0.0, after_commit=False)
        health.end(flight)
    health.breaker.succeed(NOW)
    assert ids(plan_of(*ends)) == ["flaky", "solid"]
    assert ids(plan_of(*ends, book=book)) == ["solid", "flaky"]


def test_a_free_endpoint_scores_by_time_alone() -> None:
    """G83"""
    free, paid = endpoint("free", price=price(0, 0)), endpoint("paid", price=price(0.10, 0.40))
    for name in ("expected-cost", "price"):
        assert first_picks(20, free, paid, asked=strategy(name), value_of_time=1e-7) == {"free": 20}


def test_streams_and_whole_answers_prefer_their_own_best() -> None:
    """G75"""
    book, a, b = HealthBook(), endpoint("a"), endpoint("b")
    for end, ttft, total in ((a, 0.1, 3.0), (b, 0.5, 1.0)):
        health = book.of(end)
        for _ in range(10):
            flight = health.begin(NOW - total, stream=True)
            health.commit(NOW, flight, ttft)
            health.finish(NOW, flight, Usage(10, 3), None)
            health.end(flight)
            flight = health.begin(NOW - total, stream=False)
            health.commit(NOW, flight, None)
            health.finish(NOW, flight, Usage(10, 3), None)
            health.end(flight)
    short = 3  # tokens: the first token is what counts
    streams = first_picks(50, a, b, book=book, asked=request(stream=True, max_tokens=short))
    wholes = first_picks(50, a, b, book=book, asked=request(max_tokens=short))
    assert streams == {"a": 50} and wholes == {"b": 50}


def test_a_hanging_endpoint_gets_a_handful_of_a_burst() -> None:
    """G77"""
    book, a, b = HealthBook(), endpoint("a"), endpoint("b")
    record(book, a, 0.19)
    record(book, b, 0.20)
    rng, picks = random.Random(7), Counter[str]()
    for i in range(50):
        now = NOW + i / 50
        plan = plan_of(a, b, book=book, rng=rng, now=now, asked=request(stream=True, max_tokens=1))
        chosen = plan.candidates[0].endpoint
        picks[chosen.id] += 1
        flight = book.of(chosen).begin(now, stream=True)
        if chosen.id == "b":  # answers; a hangs
            book.of(chosen).commit(now, flight, 0.2)
            book.of(chosen).end(flight)
    assert picks["a"] <= 12


def test_a_new_endpoint_gets_a_few_of_a_burst_not_all_of_it() -> None:
    """G79"""
    book, old, new = HealthBook(), endpoint("old"), endpoint("new")
    record(book, old, 0.5, num=20)
    rng, picks = random.Random(7), Counter[str]()
    for _ in range(100):
        chosen = plan_of(old, new, book=book, rng=rng, asked=request(stream=True)).candidates[0].endpoint
        picks[chosen.id] += 1
        book.of(chosen).begin(NOW, stream=True).has_answered = chosen.id == "old"
    assert 1 <= picks["new"] <= MAX_WARMING


def test_a_burst_on_endpoints_that_are_all_new_is_shared() -> None:
    book, ends, rng = HealthBook(), [endpoint("a"), endpoint("b")], random.Random(7)
    picks = Counter[str]()
    for _ in range(100):
        chosen = plan_of(*ends, book=book, rng=rng).candidates[0].endpoint
        picks[chosen.id] += 1
        book.of(chosen).begin(NOW, stream=True)
    assert min(picks.values()) >= 30


# Exploration.


def test_a_recovered_endpoint_is_measured_again_and_then_preferred() -> None:
    """G79"""
    book, rng = HealthBook(), random.Random(7)
    recovered, steady = endpoint("recovered"), endpoint("steady")
    record(book, recovered, 5.0)
    record(book, steady, 0.5)
    picks = []
    for i in range(400):
        now = NOW + 3.0 * i
        plan = plan_of(
            recovered,
            steady,
            book=book,
            rng=rng,
            now=now,
            explore=0.01,
            asked=request(stream=True, max_tokens=1),
        )
        first = plan.candidates[0]
        picks.append(first.endpoint.id)
        health = book.of(first.endpoint)
        flight = health.begin(now, True, first.is_exploring)
        health.commit(now, flight, 0.05 if first.endpoint.id == "recovered" else 0.5)
        health.end(flight)
    assert picks[0] == "steady" and picks[-1] == "recovered"
    assert picks.count("recovered") > 50


def test_exploring_takes_the_oldest_sample_once_in_a_hundred() -> None:
    book, near, far = HealthBook(), fast("near", 1.0), fast("far", 60.0)
    record(book, near, 1.0)
    streamed = request(stream=True)
    picks = first_picks(2000, near, far, book=book, explore=0.01, asked=streamed)
    assert picks["far"] / 2000 == pytest.approx(0.01, abs=0.005)
    shares = {
        c.endpoint.id: c.share for c in plan_of(near, far, book=book, explore=0.01, asked=streamed).candidates
    }
    assert shares == pytest.approx({"near": 0.99, "far": 0.01})


def test_one_exploring_request_at_a_time_per_endpoint() -> None:
    book, near, far = HealthBook(), fast("near", 1.0), fast("far", 60.0)
    record(book, near, 1.0)
    first = plan_of(near, far, book=book, explore=1.0, asked=request(stream=True)).candidates[0]
    assert first.endpoint.id == "far" and first.is_exploring
    book.of(far).begin(NOW, stream=True, is_exploring=True)
    second = plan_of(near, far, book=book, explore=1.0, asked=request(stream=True)).candidates[0]
    assert second.endpoint.id == "near" and not second.is_exploring


def test_nothing_is_explored_where_the_caller_set_the_order() -> None:
    ends = [fast("near", 1.0), fast("far", 60.0)]
    for asked in (wishing(sort="latency"), wishing(order=("near",)), strategy("price", stream=True)):
        assert not plan_of(*ends, explore=1.0, asked=asked).candidates[0].is_exploring


def test_exploring_never_uses_a_filtered_endpoint() -> None:
    ends = [fast("near", 1.0), fast("far", 60.0), endpoint("off", disabled="no key")]
    for seed in range(50):
        plan = plan_of(*ends, explore=1.0, rng=random.Random(seed))
        assert "off" not in ids(plan)


# Other strategies.


def test_price_follows_the_inverse_square_and_puts_outages_last() -> None:
    book = HealthBook()
    ends = [endpoint(n, price=price(usd, usd)) for n, usd in (("a", 1), ("b", 2), ("c", 3))]
    book.of(ends[1]).fail(NOW - 5, UpstreamError(FailureClass.TRANSIENT, "x"), 1.0, 0.0, after_commit=False)
    picks = first_picks(1500, *ends, book=book, asked=strategy("price"))
    assert set(picks) == {"a", "c"}
    assert picks["a"] / picks["c"] == pytest.approx(9, rel=0.3)
    assert ids(plan_of(*ends, book=book, asked=strategy("price")))[-1] == "b"
    later = plan_of(*ends, book=book, asked=strategy("price"), now=NOW + 31)
    assert ids(later).index("b") < 2


def test_free_endpoints_share_equally_and_first_under_price() -> None:
    ends = [endpoint("f1"), endpoint("f2"), endpoint("paid", price=price(1, 1))]
    picks = first_picks(2000, *ends, asked=strategy("price"))
    assert set(picks) == {"f1", "f2"}
    assert picks["f1"] / 2000 == pytest.approx(0.5, abs=0.05)


def test_latency_and_throughput_are_strict() -> None:
    ends = [fast("talker", 2.0, 200), fast("starter", 0.1, 20)]
    assert first_picks(20, *ends, asked=strategy("latency", stream=True)) == {"starter": 20}
    assert first_picks(20, *ends, asked=strategy("throughput", stream=True)) == {"talker": 20}


def test_latency_reads_the_last_five_minutes_median_once_there_are_samples() -> None:
    book, a, b = HealthBook(), endpoint("a"), endpoint("b")
    record(book, a, 0.2, num=9)
    record(book, a, 30.0)  # one outlier: the peak average is 30 s, the median 0.2 s
    record(book, b, 1.0, num=10)
    assert ids(plan_of(a, b, book=book, asked=wishing(sort="latency"))) == ["a", "b"]


def test_round_robin_takes_turns() -> None:
    book, ends = HealthBook(), [endpoint("a"), endpoint("b"), endpoint("c")]
    picks = []
    for _ in range(9):
        chosen = plan_of(*ends, book=book, asked=strategy("round-robin")).candidates[0].endpoint
        book.take_turn(chosen)
        picks.append(chosen.id)
    assert picks[:3] == picks[3:6] == picks[6:] and sorted(picks[:3]) == ["a", "b", "c"]


def test_least_busy_takes_the_emptiest() -> None:
    book, ends = HealthBook(), [endpoint("a"), endpoint("b")]
    book.of(ends[0]).begin(NOW, True)
    assert ids(plan_of(*ends, book=book, asked=strategy("least-busy"))) == ["b", "a"]


@pytest.mark.parametrize("turned", [False, True])
def test_weights_hold_in_any_order_and_default_to_one(turned: bool) -> None:
    """G80"""
    ends = [endpoint("a"), endpoint("b", weight=9.0), endpoint("c", weight=1.0)]
    picks = first_picks(1500, *(reversed(ends) if turned else ends), asked=strategy("weighted"))
    assert picks["b"] / 1500 == pytest.approx(9 / 11, abs=0.04)
    assert picks["a"] / 1500 == pytest.approx(1 / 11, abs=0.03)
    without_a = first_picks(1500, *ends[1:], asked=strategy("weighted"))
    assert without_a["b"] / 1500 == pytest.approx(0.9, abs=0.03)


def test_weight_zero_is_never_first_but_still_a_fallback() -> None:
    """G65: an explicit zero is not "not set"."""
    ends = [endpoint("a", weight=0.0), endpoint("b", weight=1.0)]
    assert first_picks(100, *ends, asked=strategy("weighted")) == {"b": 100}
    assert ids(plan_of(*ends, asked=strategy("weighted"))) == ["b", "a"]
    assert first_picks(10, ends[0], asked=strategy("weighted")) == {"a": 10}


def chosen(*routes: ModelRoute, asked: InferenceRequest | None = None, **settings: Any) -> dict[str, str]:
    plan = plan_of(*routes, asked=asked, **settings)
    return {name: f"{choice.strategy} by {choice.source}" for name, choice in plan.choices.items()}


def test_a_requests_strategy_goes_before_its_models_and_that_before_the_files() -> None:
    ends = [fast("near", 0.1, price=price(0, 50)), fast("cheap", 9.0)]
    plain, own = route("m", *ends), route("m", *ends, strategy="latency")
    file = {"strategy": "price"}
    assert ids(plan_of(plain, **file))[0] == "cheap"
    assert ids(plan_of(own, **file))[0] == "near"
    assert ids(plan_of(own, asked=strategy("price")))[0] == "cheap"
    assert chosen(plain, **file) == {"m": "price by routing.strategy"}
    assert chosen(own, **file) == {"m": "latency by models.m.strategy"}
    assert chosen(own, asked=strategy("price")) == {"m": "price by ionrouter.strategy"}


def test_an_order_by_one_quality_goes_before_every_strategy() -> None:
    ends = [fast("near", 0.1, price=price(0, 50)), fast("cheap", 9.0)]
    own = route("m", *ends, strategy="latency")
    sorting = request(
        preferences=ProviderPreferences(sort="price"), overrides=Overrides(strategy="least-busy")
    )
    assert ids(plan_of(own, asked=sorting)) == ["cheap", "near"]
    assert chosen(own, asked=sorting) == {"m": "sort:price by provider.sort"}
    suffixed = route("m", *ends, strategy="latency", variants=("nitro", "floor"))
    assert ids(plan_of(suffixed)) == ["cheap", "near"]
    assert chosen(suffixed) == {"m": "sort:price by :floor"}


def test_every_tier_has_its_models_strategy_and_a_group_its_first_models() -> None:
    def ends(model: str) -> list[Endpoint]:
        return [fast(f"{model}-near", 0.1, price=price(0, 50)), fast(f"{model}-cheap", 9.0)]

    first, second = route("a", *ends("a"), strategy="latency"), route("b", *ends("b"))
    plan = plan_of(first, second, strategy="price")
    assert ids(plan) == ["a-near", "a-cheap", "b-cheap", "b-near"]
    assert plan.strategy == "latency"
    assert (
        plan_of(
            route("a", endpoint("a-near", disabled="no key"), strategy="latency"), second, strategy="price"
        ).strategy
        == "price"
    )
    group = [
        route(name, *ends(name), group="g", strategy=own) for name, own in (("a", "latency"), ("b", None))
    ]
    assert ids(plan_of(*group, strategy="price")) == ["a-near", "b-near", "a-cheap", "b-cheap"]
    assert set(chosen(*group).values()) == {"latency by models.a.strategy"}


def test_an_unknown_strategy_names_the_field() -> None:
    with pytest.raises(RequestError, match="fastest") as caught:
        plan_of(endpoint("a"), asked=strategy("fastest"))
    assert (caught.value.status, caught.value.param) == (400, "ionrouter.strategy")


# The caller's preferences.


@pytest.mark.parametrize(("sort", "order"), [("price", "bca"), ("latency", "cab"), ("throughput", "abc")])
def test_sort_gives_a_strict_order(sort: Any, order: str) -> None:
    ends = [
        fast("a", 2.0, 200, price=price(9, 9)),
        fast("b", 3.0, 100, price=price(1, 1)),
        fast("c", 1.0, 50, price=price(2, 2)),
    ]
    for seed in range(10):
        assert ids(plan_of(*ends, asked=wishing(sort=sort), rng=random.Random(seed))) == list(order)


def test_order_comes_first_and_the_normal_list_after_it() -> None:
    ends = [fast("a", 1.0), fast("b", 5.0), fast("c", 50.0), fast("d", 60.0)]
    assert ids(plan_of(*ends, asked=wishing(order=("D", "nobody", "c")))) == ["d", "c", "a", "b"]


def test_a_stale_name_in_order_is_ignored() -> None:
    ends = [fast("a", 1.0), fast("b", 5.0)]
    assert ids(plan_of(*ends, asked=wishing(order=("gone",)))) == ["a", "b"]


def test_without_fallbacks_only_the_first_or_the_ordered_are_left() -> None:
    ends = [fast("a", 1.0), fast("b", 5.0), fast("c", 9.0)]
    assert ids(plan_of(*ends, asked=wishing(allow_fallbacks=False))) == ["a"]
    assert ids(plan_of(*ends, asked=wishing(allow_fallbacks=False, order=("c", "b")))) == ["c", "b"]


def test_models_are_tiers_unless_the_sort_merges_them() -> None:
    primary = route("m", fast("m-slow", 50.0))
    fallback = route("n", fast("n-fast", 1.0))
    assert ids(plan_of(primary, fallback)) == ["m-slow", "n-fast"]
    assert ids(plan_of(primary, fallback, asked=wishing(sort="latency"))) == ["m-slow", "n-fast"]
    merged = wishing(sort="latency", sort_partition="none")
    assert ids(plan_of(primary, fallback, asked=merged)) == ["n-fast", "m-slow"]


def test_models_are_merged_by_the_strategy_that_all_of_them_have() -> None:
    """`partition: none` or `route: sort` without a sort: by score, or as every model's suffix says."""
    primary = route("m", fast("m-slow", 50.0, price=price(9, 9)))
    fallback = route("n", fast("n-fast", 1.0, price=price(1, 1)))
    merged = wishing(sort_partition="none")
    assert ids(plan_of(primary, fallback, asked=merged)) == ["n-fast", "m-slow"]
    floors = [replace(one, variants=("floor",)) for one in (primary, fallback)]
    assert ids(plan_of(*floors, asked=merged)) == ["n-fast", "m-slow"]
    assert ids(plan_of(floors[0], fallback, asked=merged)) == ["m-slow", "n-fast"]  # two strategies


def test_only_the_first_tier_is_drawn_from() -> None:
    primary = route("m", fast("m", 50.0))
    fallback = route("n", fast("n1", 1.0), fast("n2", 1.0))
    for seed in range(20):
        assert ids(plan_of(primary, fallback, rng=random.Random(seed)))[0] == "m"


def test_an_empty_first_tier_leaves_the_draw_to_the_next() -> None:
    primary = route("m", endpoint("m", disabled="no key"))
    fallback = route("n", fast("n1", 1.0), fast("n2", 1.0))
    firsts = {ids(plan_of(primary, fallback, rng=random.Random(seed)))[0] for seed in range(20)}
    assert firsts == {"n1", "n2"}


def test_endpoints_that_miss_the_preferred_speed_go_last_even_behind_another_model() -> None:
    book = HealthBook()
    slow, other = endpoint("slow"), endpoint("other")
    record(book, slow, 4.0, num=5)
    asked = wishing(preferred_max_latency=PercentileCutoffs({"p50": 2.0}))
    plan = plan_of(route("m", slow), route("n", other), book=book, asked=asked)
    assert ids(plan) == ["other", "slow"]
    rate = wishing(preferred_min_throughput=PercentileCutoffs({"p90": 1e6}))
    assert ids(plan_of(route("m", slow), route("n", other), book=book, asked=rate)) == ["other", "slow"]
    lax = wishing(preferred_max_latency=PercentileCutoffs({"p50": 5.0, "p99": 5.0}))
    assert ids(plan_of(route("m", slow), route("n", other), book=book, asked=lax)) == ["slow", "other"]


def test_those_that_take_every_parameter_come_before_those_that_drop_one() -> None:
    asked = request(body={"messages": [], "seed": 1, "tools": [{}]}, parameters=frozenset({"seed", "tools"}))
    ends = [
        fast("drops", 1.0, supported_parameters=frozenset({"tools"})),
        fast("silent", 1.0),
        fast("takes", 50.0, supported_parameters=frozenset({"seed", "tools"})),
        fast("cannot", 1.0, supported_parameters=frozenset({"seed"})),
    ]
    plan = plan_of(*ends, asked=asked)
    assert ids(plan)[0] == "takes" and set(ids(plan)) == {"takes", "drops", "silent"}
    assert [(e.endpoint.id, e.filter) for e in plan.exclusions] == [("cannot", "capability")]


def test_an_estimate_that_nobody_fits_leaves_the_verdict_to_the_endpoint_if_it_is_close() -> None:
    small, large = endpoint("small", context_length=800), endpoint("large", context_length=1000)
    assert ids(plan_of(small, large, asked=request(prompt_tokens=900))) == ["large"]
    assert ids(plan_of(small, large, asked=request(prompt_tokens=1200))) == ["large"]
    far = plan_of(small, large, asked=request(prompt_tokens=1400))
    assert far.candidates == () and {e.filter for e in far.exclusions} == {"context_length"}
    assert ids(plan_of(small, asked=request(prompt_tokens=10, max_tokens=900))) == []


def test_an_engine_inside_gives_what_is_left_where_nobody_has_room_for_the_answer() -> None:
    inside, hosted = endpoint("inside"), endpoint("hosted", context_length=800)

    def planned(at: list[Endpoint], **asked: Any) -> list[str]:
        loads = {"inside": EngineLoad(ready=True, context_length=500)}
        scene = Scene(HealthBook(), RoutingSettings(), NOW, lambda at: loads.get(at.id))
        return ids(select((route("m", *at),), request(**asked), scene, random.Random(7)))

    assert planned([inside, hosted], prompt_tokens=100, max_tokens=600) == ["hosted"]
    assert planned([inside, hosted], prompt_tokens=100, max_tokens=900) == ["inside"]
    assert planned([inside], prompt_tokens=100, max_tokens=100_000) == ["inside"]
    assert planned([inside], prompt_tokens=600, max_tokens=100_000) == ["inside"], "an estimate, and close"
    assert planned([inside], prompt_tokens=700, max_tokens=1) == []
    stated = endpoint("inside", context_length=400)
    assert planned([stated], prompt_tokens=100, max_tokens=900) == [], "what the file says holds"


# The last resort.


def broken(book: HealthBook, *ends: Endpoint, failure: FailureClass = FailureClass.TRANSIENT) -> None:
    for end in ends:
        for _ in range(3):
            book.of(end).fail(NOW, UpstreamError(failure, "x"), 1.0, 0.0, after_commit=False)


def test_when_every_breaker_is_open_the_best_one_is_tried() -> None:
    book, ends = HealthBook(), [fast("a", 9.0), fast("b", 1.0), endpoint("c", disabled="no key")]
    broken(book, *ends[:2])
    plan = plan_of(*ends, book=book)
    assert [(c.endpoint.id, c.is_forced) for c in plan.candidates] == [("b", True)]
    assert {e.endpoint.id for e in plan.exclusions} == {"a", "c"}


def test_never_one_whose_account_is_refused_nor_one_in_retry_after() -> None:
    book, ends = HealthBook(), [endpoint("refused"), endpoint("limited")]
    broken(book, ends[0], failure=FailureClass.DOMAIN)
    book.of(ends[1]).retry_at = NOW + 5
    plan = plan_of(*ends, book=book)
    assert plan.candidates == ()
    assert {e.filter for e in plan.exclusions} == {"breaker_open", "retry_after"}


def test_a_healthy_fallback_model_is_better_than_a_broken_endpoint() -> None:
    book, down, up = HealthBook(), endpoint("down"), endpoint("up")
    broken(book, down)
    plan = plan_of(route("m", down), route("n", up), book=book)
    assert [(c.endpoint.id, c.is_forced) for c in plan.candidates] == [("up", False)]


def test_a_broken_endpoint_that_the_request_may_not_use_stays_out() -> None:
    book, down = HealthBook(), endpoint("down")
    broken(book, down)
    assert plan_of(down, book=book, asked=wishing(ignore=("down",))).candidates == ()


# Properties.

NAMES = "abcdef"
ENDPOINTS = st.builds(
    lambda name, p, c, ttft, disabled, quant, ctx, domain, zdr: endpoint(
        name,
        price=price(p, c),
        expected=Expected(ttft_s=ttft),
        disabled="no key" if disabled else None,
        quantization=quant,
        context_length=ctx,
        domain=domain,
        provider=Provider(slug=name, name=name, type="fake", zdr=zdr),
    ),
    st.sampled_from(NAMES),
    st.floats(0, 50),
    st.floats(0, 50),
    st.floats(0.01, 60),
    st.booleans(),
    st.sampled_from(["fp8", "mxfp8", "bf16", "unknown"]),
    st.sampled_from([None, 5, 100]),
    st.sampled_from(["x", "y", ""]),
    st.booleans(),
)
REQUESTS = st.builds(
    lambda order, only, ignore, falls, zdr, quants, sort, limit, name: request(
        preferences=ProviderPreferences(
            order=tuple(order),
            only=tuple(only),
            ignore=tuple(ignore),
            allow_fallbacks=falls,
            zdr=zdr,
            quantizations=tuple(quants),
            sort=sort,
            max_price={} if limit is None else {"prompt": limit},
        ),
        overrides=Overrides(strategy=name),
    ),
    st.lists(st.sampled_from(NAMES), max_size=3),
    st.lists(st.sampled_from(NAMES), max_size=4),
    st.lists(st.sampled_from(NAMES), max_size=2),
    st.booleans(),
    st.booleans(),
    st.sampled_from([[], ["fp8"], ["bf16", "unknown"]]),
    st.sampled_from([None, "price", "latency", "throughput", "exacto"]),
    st.sampled_from([None, 10.0]),
    st.sampled_from(["expected-cost", "price", "latency", "weighted", "round-robin", "least-busy", None]),
)
TROUBLES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from([FailureClass.TRANSIENT, FailureClass.CAPACITY])),
    max_size=12,
)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(ENDPOINTS, min_size=1, max_size=6, unique_by=lambda e: e.id),
    REQUESTS,
    TROUBLES,
    st.integers(0, 1000),
)
def test_selection_never_returns_a_filtered_endpoint_and_each_at_most_once(
    ends: list[Endpoint],
    asked: InferenceRequest,
    troubles: list[tuple[str, FailureClass]],
    seed: int,
) -> None:
    book = HealthBook()
    by_id = {e.id: e for e in ends}
    for end in ends:
        book.of(end)
    for name, failure in troubles:
        if name in by_id:
            book.of(by_id[name]).fail(NOW, UpstreamError(failure, "x"), 1.0, 0.0, after_commit=False)
    m = route("m", *ends)
    before = repr(book)
    plan = plan_of(m, book=book, asked=asked, rng=random.Random(seed), explore=0.2)
    chosen = ids(plan)
    assert len(set(chosen)) == len(chosen)
    for candidate in plan.candidates:
        out = screen(Subject(candidate.endpoint, asked, book.of(candidate.endpoint), None, NOW), m)
        assert out is None or (candidate.is_forced and out.filter == "breaker_open" and not out.is_domain)
    assert not set(chosen) & {e.endpoint.id for e in plan.exclusions}
    if asked.preferences.allow_fallbacks and not any(c.is_forced for c in plan.candidates):
        assert {*chosen, *(e.endpoint.id for e in plan.exclusions)} == set(by_id)
    if chosen:
        first = plan.candidates[0]
        assert first.share > 0
        if asked.preferences.allow_fallbacks:
            assert sum(c.share for c in plan.candidates) == pytest.approx(1)
    again = plan_of(m, book=book, asked=asked, rng=random.Random(seed), explore=0.2)
    assert again == plan  # deterministic ...
    assert repr(book) == before  # ... and selecting changes nothing
