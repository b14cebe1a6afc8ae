"""Sessions stay where their prompt cache is warm, while that is worth it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ionrouter.balancing.affinity import MAX_SESSIONS, TTL_S, Affinity, caches
from ionrouter.balancing.health import HealthBook
from ionrouter.balancing.select import Scene, select
from ionrouter.routing.table import Endpoint, Expected, Provider, RoutingSettings
from ionrouter.schema.load import EngineLoad
from ionrouter.schema.request import InferenceRequest, ProviderPreferences
from tests.support.routes import Bench, endpoint, price, request, route

CACHED = {"price": price(2, 8, cache_read=0.2)}


def in_session(**changes: Any) -> InferenceRequest:
    return request(session_id="s", **changes)


def test_a_session_finds_its_endpoint_until_it_has_idled_too_long() -> None:
    affinity, a = Affinity(), endpoint("a", **CACHED)
    affinity.remember(in_session(), a, 0.0)
    assert affinity.find(in_session(), TTL_S - 1) == "a"
    assert affinity.find(in_session(), TTL_S) is None
    affinity.remember(in_session(), a, 500.0)
    assert affinity.find(in_session(), 500 + TTL_S - 1) == "a"


def test_the_clients_own_cache_lifetime_counts() -> None:
    affinity = Affinity()
    hour = in_session(gateway_fields={"cache_control": {"type": "ephemeral", "ttl": "1h"}})
    affinity.remember(hour, endpoint("a", **CACHED), 0.0)
    assert affinity.find(in_session(), 3599.0) == "a" and affinity.find(in_session(), 3600.0) is None


def test_sessions_are_apart_by_key_model_and_name() -> None:
    affinity = Affinity()
    affinity.remember(in_session(key_id="k"), endpoint("a", **CACHED), 0.0)
    assert affinity.find(in_session(key_id="k"), 1.0) == "a"
    assert affinity.find(in_session(key_id="other"), 1.0) is None
    assert affinity.find(in_session(), 1.0) is None
    assert affinity.find(request("n", session_id="s", key_id="k"), 1.0) is None
    assert affinity.find(request(key_id="k"), 1.0) is None


@pytest.mark.parametrize(
    ("changes", "does"),
    [
        ({"price": price(2, 8, cache_read=0.2)}, True),
        ({"price": price(2, 8, cache_read=2)}, False),
        ({"price": price(2, 8)}, False),
        ({"price": price(2, 8, cache_read=0)}, True),
        ({"caches": True}, True),
        ({"provider": Provider("ion", "Ion", "ion")}, True),
        ({}, False),
    ],
)
def test_only_what_caches_is_worth_coming_back_to(changes: dict[str, Any], does: bool) -> None:
    assert caches(endpoint("a", **changes)) is does
    affinity = Affinity()
    affinity.remember(in_session(), endpoint("a", **changes), 0.0)
    assert (affinity.find(in_session(), 1.0) == "a") is does


def test_moving_to_an_endpoint_without_a_cache_forgets_the_old_one() -> None:
    affinity = Affinity()
    affinity.remember(in_session(), endpoint("a", **CACHED), 0.0)
    affinity.remember(in_session(), endpoint("b"), 1.0)
    assert affinity.find(in_session(), 2.0) is None


def test_sessions_are_bounded_and_the_longest_unused_goes_first() -> None:
    affinity, a = Affinity(), endpoint("a", **CACHED)
    for i in range(MAX_SESSIONS + 10):
        affinity.remember(request(session_id=f"s{i}"), a, 0.0)
    assert len(affinity._entries) == MAX_SESSIONS
    assert affinity.find(request(session_id="s0"), 1.0) is None
    assert affinity.find(request(session_id=f"s{MAX_SESSIONS + 9}"), 1.0) == "a"


def first(
    *ends: Endpoint, asked: InferenceRequest | None = None, load: EngineLoad | None = None, seed: int = 7
) -> str:
    scene = Scene(
        HealthBook(),
        RoutingSettings(explore=0.0),
        1000.0,
        lambda one: load if one.id == "old" else None,
        sticky="old",
    )
    plan = select((route("m", *ends),), asked or in_session(), scene, random.Random(seed))
    return plan.candidates[0].endpoint.id


def timed(name: str, seconds: float, **more: Any) -> Endpoint:
    return endpoint(name, expected=Expected(seconds, 1e9), **more)


def test_the_sessions_endpoint_is_first_and_not_drawn() -> None:
    ends = [timed("new", 1.0), timed("old", 2.0)]
    assert {first(*ends, seed=seed) for seed in range(20)} == {"old"}


def test_not_when_it_costs_three_times_the_best_even_with_everything_cached() -> None:
    assert first(timed("new", 1.0), timed("old", 2.9)) == "old"
    assert first(timed("new", 1.0), timed("old", 3.2)) == "new"
    # 10000 prompt tokens: 0.02 USD cold, 0.002 USD cached; the best costs 0.001 USD.
    warm = timed("old", 0.001, price=price(2, 0, cache_read=0.2))
    cold = timed("old", 0.001, price=price(2, 0))
    best = timed("new", 0.001, price=price(0.1, 0))
    asked = in_session(prompt_tokens=10_000)
    assert first(best, warm, asked=asked) == "old"
    assert first(best, cold, asked=asked) == "new"


def test_not_when_the_local_queue_is_longer_than_two_seconds() -> None:
    ends = [timed("new", 3.0), timed("old", 0.1)]
    short = EngineLoad(ready=True, waiting_tokens=1900, prefill_rate=1000)
    long = EngineLoad(ready=True, waiting_tokens=2100, prefill_rate=1000)
    assert first(*ends, load=short) == "old"
    slow = [timed("new", 2.0), timed("old", 0.1)]
    assert first(*slow, load=long) == "new"


@pytest.mark.parametrize(
    "wishes", [{"order": ("new",)}, {"ignore": ("old",)}, {"only": ("new",)}], ids=["order", "ignore", "only"]
)
def test_the_callers_wishes_beat_the_session(wishes: dict[str, Any]) -> None:
    ends = [timed("new", 1.0), timed("old", 1.0)]
    assert first(*ends, asked=in_session(preferences=ProviderPreferences(**wishes))) == "new"


async def test_a_session_stays_where_it_was_answered_and_moves_when_that_fails() -> None:
    scripts = [{"text": "1"}, {"text": "2"}, {"status": 500}, {"text": "4"}]
    ends = [timed(n, 5.0, script={"scripts": scripts}, caches=True) for n in ("a", "b", "c")]
    bench = Bench.of(route("m", *ends))
    asked = in_session(stream=True)
    served = [(await bench.run(asked)).committed.endpoint_id for _ in range(4)]
    assert served[0] == served[1]
    assert served[2] != served[1] and served[3] == served[2]
    assert bench.router.select(asked).reason == "session's endpoint"
    assert bench.router.select(request(stream=True)).reason != "session's endpoint"


def test_machine_time_of_our_own_counts_in_the_score_and_is_not_billed() -> None:
    free = timed("new", 10.0)
    shadowed = timed("old", 10.0, shadow_price_per_hour=3.6)  # 0.001 USD a second
    scene = Scene(HealthBook(), RoutingSettings(explore=0.0, value_of_time=0.0001), 1000.0)
    plan = select((route("m", shadowed, free),), request(), scene, random.Random(7))
    by_id = {c.endpoint.id: c for c in plan.candidates}
    assert by_id["old"].score.good == pytest.approx(11 * by_id["new"].score.good)
    assert by_id["old"].outlook.price == 0.0
