"""Goals of routing, over twenty seeds each, with the production router in virtual time; some of its terms
are taken out to see that the same measurement then misses."""

from __future__ import annotations

import statistics

import pytest
from msgspec.structs import replace

from ionrouter.balancing import select
from ionrouter.balancing.affinity import Affinity
from ionrouter.balancing.cost import Outlook, Score, score
from ionrouter.balancing.health import Health
from tests.simulation.checks import (
    SEEDS,
    after_burst,
    fault,
    flaky,
    herd,
    limited,
    newcomer,
    over_seeds,
    regrets,
    sessions,
    told_to_wait,
)


@pytest.mark.parametrize("num_endpoints", [3, 10, 30])
def test_steady_mixes_cost_little_more_than_foresight(num_endpoints: int) -> None:
    found = regrets(num_endpoints, 250, ("expected-cost", "price", "latency", "round-robin"))
    assert found["expected-cost"] <= 1.15
    assert found["expected-cost"] <= 1.02 * min(found["price"], found["latency"], found["round-robin"])
    assert found["round-robin"] >= 1.5


@pytest.mark.parametrize("kind", ["slow", "failing", "silent"])
def test_the_best_endpoint_is_left_within_two_seconds_and_comes_back_within_a_minute(kind: str) -> None:
    found = [fault(kind, seed) for seed in SEEDS]
    assert statistics.fmean(one.avoided for one in found) >= 0.95
    assert min(one.back for one in found) >= 0.8


@pytest.mark.parametrize("kind", ["slow", "failing", "silent"])
def test_it_comes_back_at_fifteen_requests_a_second_too(kind: str) -> None:
    found = [fault(kind, seed, rate=15.0) for seed in SEEDS]
    assert statistics.fmean(one.avoided for one in found) >= 0.95
    assert min(one.back for one in found) >= 0.8


def test_at_the_default_value_of_time_slow_answers_are_left_once_they_are_whole() -> None:
    """They take 16 s; until then nothing is known but a first token three seconds late, worth 0.0003 USD."""
    found = [
        fault("slow", s, rate=15.0, fault_s=25, grace_s=20, recovery_s=10, value_of_time=1e-4) for s in SEEDS
    ]
    assert statistics.fmean(one.avoided for one in found) >= 0.95


def test_a_newcomer_gets_no_more_than_its_share_of_a_burst() -> None:
    assert max(over_seeds(newcomer)) <= 0.25


def test_a_rate_limit_is_learned() -> None:
    assert statistics.fmean(over_seeds(limited)) < 0.03


@pytest.mark.parametrize("rate_before", [2.0, 10.0])
def test_a_burst_teaches_the_limit_and_not_the_quiet_before_it(rate_before: float) -> None:
    found = [after_burst(seed, rate_before) for seed in range(5)]
    assert statistics.fmean(one.refused for one in found) < 0.03
    assert statistics.fmean(one.share for one in found) > 0.9


def test_sessions_stay_and_without_affinity_they_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert statistics.fmean(over_seeds(sessions)) <= 0.2
    monkeypatch.setattr(Affinity, "find", lambda self, request, now: None)
    assert statistics.fmean(over_seeds(sessions)) > 0.2


def test_without_exploration_a_share_does_not_come_back() -> None:
    assert statistics.fmean(fault("slow", seed, rate=15.0, explore=0.0).back for seed in SEEDS) < 0.8


def test_time_lost_with_failures_counts_and_without_waste_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Always the sound one would be 1.22; the rest is what it takes to find out, and what the draw spends."""
    assert statistics.fmean(over_seeds(flaky)) < 1.45

    def wasteless(outlook: Outlook, value_of_time: float) -> Score:
        known = score(outlook, value_of_time)
        return replace(known, waste=0.0, total=known.good + known.broken)

    monkeypatch.setattr(select, "score", wasteless)
    assert statistics.fmean(over_seeds(flaky)) > 1.55


def test_retry_after_is_kept_and_without_it_a_limit_is_hit_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert statistics.fmean(over_seeds(told_to_wait)) < 0.03
    monkeypatch.setattr(Health, "_refuse", lambda self, now, retry_after_s, sent_at: None)
    assert statistics.fmean(over_seeds(told_to_wait)) > 0.03


def test_the_spread_keeps_the_herd_apart() -> None:
    assert statistics.fmean(over_seeds(herd)) <= 0.5
    assert statistics.fmean(over_seeds(lambda seed: herd(seed, spread=1.0))) > 0.5


def test_silence_goes_unseen_without_the_age_of_waiting_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Health, "oldest_wait_s", lambda self, now, stream: 0.0)
    monkeypatch.setattr(Health, "is_stalled", lambda self, now, stream: False)
    avoided = over_seeds(lambda seed: fault("silent", seed, recovery_s=10.0).avoided)
    assert statistics.fmean(avoided) < 0.95
