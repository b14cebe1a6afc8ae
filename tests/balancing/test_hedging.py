"""When a slow attempt gets a rival, and how many may."""

from __future__ import annotations

import pytest

from ionrouter.balancing.health import Health
from ionrouter.balancing.hedging import MIN_SAMPLES, HedgeBook, patience_s
from ionrouter.balancing.share_budget import MAX_TOKENS, ShareBudget
from ionrouter.routing.table import Hedge
from ionrouter.schema.usage import Usage


def measured(times: list[float], stream: bool) -> Health:
    health = Health()
    for ttft_s in times:
        flight = health.begin(100.0 - ttft_s, stream)
        health.commit(100.0, flight, ttft_s if stream else None)
        health.finish(100.0, flight, Usage(10, 10), None)
        health.end(flight)
    return health


@pytest.mark.parametrize("stream", [True, False])
def test_the_95th_percentile_is_the_patience(stream: bool) -> None:
    health = measured([1.0] * 90 + [4.0] * 10, stream)
    assert patience_s(Hedge(), health, stream, 100.0) == pytest.approx(4.0, rel=0.02)
    assert patience_s(Hedge(), health, not stream, 100.0) is None
    assert patience_s(Hedge(), health, stream, 100.0 + 3600) is None  # an hour later nobody can tell


def test_few_samples_tell_nothing_and_seconds_need_none() -> None:
    health = measured([1.0] * (MIN_SAMPLES - 1), stream=True)
    assert patience_s(Hedge(), health, True, 100.0) is None
    assert patience_s(Hedge(after_s=2.0), health, True, 100.0) == 2.0


def test_the_floor_holds_for_both() -> None:
    health = measured([0.001] * 50, stream=True)
    assert patience_s(Hedge(floor_s=0.5), health, True, 100.0) == 0.5
    assert patience_s(Hedge(after_s=0.1, floor_s=0.5), health, True, 100.0) == 0.5


def test_those_that_lost_raise_the_percentile_and_the_average() -> None:
    health = measured([1.0] * 30, stream=True)
    for _ in range(10):
        health.give_up(100.0, health.begin(95.0, True), 300.0)
    assert patience_s(Hedge(), health, True, 100.0) == pytest.approx(5.0, rel=0.02)
    assert health.speeds[True].ttft_s.value == 5.0


def test_a_bound_below_the_average_says_nothing_of_it() -> None:
    health = measured([1.0] * 5, stream=True)
    health.give_up(100.0, health.begin(99.9, True), 300.0)
    assert health.speeds[True].ttft_s.value == 1.0
    whole = measured([1.0] * 5, stream=False)
    whole.give_up(100.0, whole.begin(60.0, False), 300.0)
    assert whole.speeds[False].pace_s.value == pytest.approx(40.0 / 400)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.1, 0.5, 1.0])
def test_extras_never_exceed_their_share(share: float) -> None:
    budget, num_taken = ShareBudget(), 0
    for number in range(1, 1001):
        budget.deposit(share)
        num_taken += budget.try_take()
        assert num_taken <= 1 + share * number + 1e-6
    assert num_taken >= share * 1000 - 1
    assert (budget.num_taken, budget.num_refused) == (num_taken, 1000 - num_taken)


def test_quiet_times_save_up_a_bounded_burst() -> None:
    budget = ShareBudget()
    for _ in range(100_000):
        budget.deposit(0.5)
    assert sum(budget.try_take() for _ in range(1000)) == MAX_TOKENS


def test_a_claim_that_was_not_used_comes_back() -> None:
    budget = ShareBudget()
    assert budget.try_take() and not budget.try_take()
    budget.refund()
    assert budget.try_take() and budget.num_taken == 1


def test_budgets_are_each_models_own_and_go_with_it() -> None:
    book = HedgeBook()
    assert book.of("m").try_take() and book.of("n").try_take()
    book.keep(frozenset({"n"}))
    assert list(book.counts()) == ["n"]
