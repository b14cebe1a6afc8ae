"""The breaker: open means no traffic."""

from __future__ import annotations

import pytest

from ionrouter.balancing.circuit_breaker import BreakerState, CircuitBreaker
from ionrouter.routing.table import BreakerRules

COOLDOWN_S, MAX_OPEN_S = BreakerRules().cooldown_s, BreakerRules().max_cooldown_s
MAX_CONSECUTIVE = BreakerRules().max_failures


def opened(now: float = 0.0, **rules: float) -> CircuitBreaker:
    breaker = CircuitBreaker(BreakerRules(**rules))  # type: ignore[arg-type]
    for _ in range(breaker.rules.max_failures):
        breaker.fail(now)
    return breaker


def test_it_opens_after_failures_in_a_row_and_lets_nothing_through() -> None:
    breaker = CircuitBreaker()
    for _ in range(MAX_CONSECUTIVE - 1):
        breaker.fail(0.0)
        assert breaker.allows(0.0)
    breaker.fail(0.0)
    assert breaker.state(0.0) is BreakerState.OPEN
    assert not breaker.allows(COOLDOWN_S - 0.01)
    assert breaker.try_acquire(0.0) is None


def test_a_success_in_between_starts_the_count_anew() -> None:
    breaker = CircuitBreaker()
    for _ in range(20):
        breaker.fail(0.0)
        breaker.fail(0.0)
        breaker.succeed(0.0)
        breaker.succeed(0.0)
        breaker.succeed(0.0)
    assert breaker.state(0.0) is BreakerState.CLOSED


def test_it_opens_on_the_error_rate_though_never_three_in_a_row() -> None:
    breaker = CircuitBreaker()
    for _ in range(10):
        if breaker.state(0.0) is BreakerState.OPEN:
            break
        breaker.succeed(0.0)
        breaker.fail(0.0)
        breaker.fail(0.0)
    assert breaker.state(0.0) is BreakerState.OPEN


def test_old_errors_do_not_count_towards_the_rate() -> None:
    breaker = CircuitBreaker()
    for i in range(200):
        breaker.fail(i * 60.0)
        breaker.succeed(i * 60.0 + 1)
    assert breaker.state(200 * 60.0) is BreakerState.CLOSED


def test_half_open_lets_one_trial_through_at_a_time() -> None:
    breaker = opened()
    permit = breaker.try_acquire(COOLDOWN_S)
    assert permit is not None and permit.is_trial
    assert not breaker.allows(COOLDOWN_S)
    assert breaker.try_acquire(COOLDOWN_S) is None


def test_asking_claims_nothing() -> None:
    breaker = opened()
    assert breaker.allows(COOLDOWN_S) and breaker.allows(COOLDOWN_S)
    assert breaker.try_acquire(COOLDOWN_S) is not None


def test_an_abandoned_trial_is_handed_back() -> None:
    breaker = opened()
    permit = breaker.try_acquire(COOLDOWN_S)
    assert permit is not None
    breaker.release(permit)
    assert breaker.try_acquire(COOLDOWN_S) is not None


def test_a_good_trial_closes_it_and_forgets_how_often_it_opened() -> None:
    breaker = opened()
    breaker.try_acquire(COOLDOWN_S)
    breaker.succeed(COOLDOWN_S)
    assert breaker.state(COOLDOWN_S) is BreakerState.CLOSED
    for _ in range(MAX_CONSECUTIVE):
        breaker.fail(100.0)
    assert breaker.until == 100.0 + COOLDOWN_S


def test_each_failed_trial_doubles_the_open_time_up_to_a_limit() -> None:
    breaker = opened()
    lengths = []
    for _ in range(8):
        now = breaker.until
        breaker.try_acquire(now)
        breaker.fail(now)
        lengths.append(breaker.until - now)
    assert lengths[:3] == [2 * COOLDOWN_S, 4 * COOLDOWN_S, 8 * COOLDOWN_S]
    assert lengths[-1] == MAX_OPEN_S


def test_a_late_failure_does_not_prolong_an_open_breaker() -> None:
    breaker = opened()
    breaker.fail(COOLDOWN_S / 2)
    assert breaker.until == COOLDOWN_S


@pytest.mark.parametrize("cooldown", [0, 0.0])
def test_a_cooldown_of_zero_never_opens_on_failures(cooldown: float) -> None:
    """G65"""
    breaker = CircuitBreaker(BreakerRules(cooldown_s=cooldown))
    for _ in range(100):
        breaker.fail(0.0)
    assert breaker.allows(0.0)


def test_a_domain_failure_opens_at_once_and_says_so_once() -> None:
    breaker = CircuitBreaker()
    assert breaker.trip(0.0) is True
    assert breaker.trip(1.0) is False
    assert breaker.is_domain and not breaker.allows(1.0)
    assert breaker.until == COOLDOWN_S
    breaker.try_acquire(COOLDOWN_S)
    assert breaker.trip(COOLDOWN_S) is False
    assert breaker.until == COOLDOWN_S * 3  # open twice as long as the first time
    breaker.succeed(COOLDOWN_S * 3)
    assert not breaker.is_domain


def test_its_rules_decide_when_it_opens_and_for_how_long() -> None:
    breaker = opened(max_failures=7, max_error_rate=1.0, cooldown_s=2.0, max_cooldown_s=5.0)
    assert breaker.until == 2.0
    lengths = []
    for _ in range(3):
        now = breaker.until
        breaker.try_acquire(now)
        breaker.fail(now)
        lengths.append(breaker.until - now)
    assert lengths == [4.0, 5.0, 5.0]


def test_a_lower_error_rate_opens_it_sooner() -> None:
    usual, strict = CircuitBreaker(), CircuitBreaker(BreakerRules(max_error_rate=0.2))
    for breaker in (usual, strict):
        for number in range(20):
            breaker.fail(0.0) if number % 4 == 0 else breaker.succeed(0.0)
    usual.fail(0.0), strict.fail(0.0)
    assert usual.allows(0.0) and not strict.allows(0.0)
