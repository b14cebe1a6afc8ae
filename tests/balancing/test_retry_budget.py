"""The retry budget."""

from __future__ import annotations

from ionrouter.balancing.retry_budget import RESERVE, RetryBudget


def test_a_quiet_endpoint_may_retry_a_few_times() -> None:
    budget = RetryBudget()
    assert [budget.try_take(0.0) for _ in range(5)] == [True] * int(RESERVE) + [False] * 2


def test_traffic_earns_a_tenth_of_itself_in_retries() -> None:
    budget = RetryBudget()
    for _ in range(1000):
        budget.deposit(0.0)
    taken = sum(budget.try_take(0.0) for _ in range(500))
    assert 100 <= taken <= 100 + RESERVE


def test_it_recovers_with_time() -> None:
    budget = RetryBudget()
    while budget.try_take(0.0):
        pass
    assert budget.try_take(600.0)
