"""Health: what each failure class does to it, and what reading it says."""

from __future__ import annotations

import pytest

from ionrouter.balancing.health import BACKOFF_S, MAX_BACKOFF_S, Health, HealthBook
from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.schema.retry_after import MAX_RETRY_AFTER_S
from ionrouter.schema.usage import Usage
from tests.support.routes import endpoint


def error(failure: FailureClass, retry_after_s: float | None = None) -> UpstreamError:
    return UpstreamError(failure, "x", retry_after_s=retry_after_s)


def failed(health: Health, failure: FailureClass, now: float = 0.0, *, after_commit: bool = False) -> None:
    health.fail(now, error(failure), 1.5, 0.25, after_commit=after_commit)


@pytest.mark.parametrize(
    "failure",
    [
        FailureClass.REQUEST,
        FailureClass.ENDPOINT_REQUEST,
        FailureClass.CONTENT,
        FailureClass.CLIENT_LEFT,
        FailureClass.LOST_RACE,
    ],
)
def test_what_is_not_the_endpoints_fault_leaves_no_trace(failure: FailureClass) -> None:
    """G66, G68"""
    health = Health()
    for _ in range(100):
        failed(health, failure)
    assert health == Health()


def test_transient_failures_raise_f_the_time_to_fail_and_open_the_breaker() -> None:
    health = Health()
    for _ in range(3):
        failed(health, FailureClass.TRANSIENT)
    assert health.fail_before(0.0) == pytest.approx((0.02 * 20 + 3) / 23)
    assert health.fail_after(0.0) == 0.005
    assert health.fail_s.mean(0.0, 0.0, 0.0) == 1.5
    assert health.fail_cost.mean(0.0, 0.0, 0.0) == 0.25
    assert not health.breaker.allows(0.0)


def test_a_failure_after_commit_raises_m_and_not_f() -> None:
    health = Health()
    failed(health, FailureClass.TRANSIENT, after_commit=True)
    assert health.fail_before(0.0) == 0.02
    assert health.fail_after(0.0) == pytest.approx((0.005 * 20 + 1) / 21)
    assert health.fail_s.weight(0.0) == 0.0


def test_capacity_means_retry_after_only() -> None:
    health = Health()
    health.fail(10.0, error(FailureClass.CAPACITY, 7.0), 1.0, 0.0, after_commit=False)
    assert health.retry_at == 17.0
    assert health.breaker.allows(10.0) and health.fail_before(10.0) == 0.02


@pytest.mark.parametrize(
    ("asked", "waits"),
    [
        (7.0, 7.0),
        (0.0, 0.0),
        (1.5, 1.5),
        (1e9, MAX_RETRY_AFTER_S),
        (-1.0, BACKOFF_S),
        (float("nan"), BACKOFF_S),
        (None, BACKOFF_S),
    ],
)
def test_retry_after_is_bounded_and_nonsense_backs_off(asked: float | None, waits: float) -> None:
    """G56"""
    health = Health()
    health.fail(0.0, error(FailureClass.CAPACITY, asked), 1.0, 0.0, after_commit=False)
    assert health.retry_at == waits


def test_429s_without_a_time_back_off_further_each_until_one_works() -> None:
    health = Health()
    waits = []
    for i in range(10):
        now = i * 1000.0
        failed(health, FailureClass.CAPACITY, now)
        waits.append(health.retry_at - now)
    assert waits[:4] == [1, 2, 4, 8] and waits[-1] == MAX_BACKOFF_S
    health.commit(1e5, health.begin(1e5, True), 0.1)
    failed(health, FailureClass.CAPACITY, 2e5)
    assert health.retry_at - 2e5 == BACKOFF_S


def test_the_latest_retry_after_counts_not_the_first() -> None:
    """G55"""
    health = Health()
    health.fail(0.0, error(FailureClass.CAPACITY, 1.0), 0.1, 0.0, after_commit=False)
    health.fail(1.0, error(FailureClass.CAPACITY, 3.0), 0.1, 0.0, after_commit=False)
    assert health.retry_at == 4.0


def test_a_503_with_retry_after_is_both_a_failure_and_a_wait() -> None:
    health = Health()
    health.fail(0.0, error(FailureClass.TRANSIENT, 9.0), 0.1, 0.0, after_commit=False)
    assert health.retry_at == 9.0 and health.fail_before(0.0) > 0.02


def test_a_refused_account_opens_the_breaker_and_asks_for_one_alert() -> None:
    health = Health()
    assert health.fail(0.0, error(FailureClass.DOMAIN), 0.1, 0.0, after_commit=False) is True
    assert health.fail(0.0, error(FailureClass.DOMAIN), 0.1, 0.0, after_commit=False) is False
    assert health.breaker.is_domain and not health.breaker.allows(0.0)


def test_the_oldest_request_without_a_first_token_sets_the_wait() -> None:
    """G77"""
    health = Health()
    first = health.begin(0.0, stream=True)
    health.begin(2.0, stream=True)
    health.begin(0.0, stream=False)
    assert health.oldest_wait_s(5.0, stream=True) == 5.0
    first.has_answered = True
    assert health.oldest_wait_s(5.0, stream=True) == 3.0


def test_ending_a_flight_twice_ends_it_once() -> None:
    """G87"""
    health = Health()
    one, two = health.begin(0.0, True), health.begin(0.0, True)
    health.end(one)
    health.end(one)
    assert health.flights == [two]


def test_streamed_and_whole_answers_have_their_own_series() -> None:
    """G75"""
    health = Health()
    flight = health.begin(0.0, stream=True)
    health.commit(0.1, flight, 0.1)
    health.finish(3.0, flight, Usage(10, 100), decode_s=2.9)
    assert health.is_measured(True) and not health.is_measured(False)
    assert health.speeds[True].ttft_s.value == 0.1
    assert health.speeds[True].token_s.value == pytest.approx(2.9 / 99)
    assert health.speeds[False].pace_s.value is None


def test_a_short_answer_says_nothing_about_tokens_per_second() -> None:
    health = Health()
    flight = health.begin(0.0, stream=True)
    health.finish(3.0, flight, Usage(10, 3), decode_s=2.0)
    assert health.speeds[True].token_s.value is None


def test_an_outage_is_significant_and_recent() -> None:
    health = Health()
    assert not health.has_outage(0.0)
    failed(health, FailureClass.TRANSIENT, 0.0)
    assert health.has_outage(29.9) and not health.has_outage(30.0)
    busy = Health()
    for _ in range(100):
        busy.commit(0.0, busy.begin(0.0, True), 0.1)
    failed(busy, FailureClass.TRANSIENT, 0.0)
    assert not busy.has_outage(0.0)  # one in a hundred


def test_a_reload_keeps_state_by_identity_and_a_new_identity_starts_clean() -> None:
    """G158"""
    book = HealthBook()
    old = endpoint("a", identity="hash-1")
    book.of(old).begin(0.0, True)
    book.of(endpoint("p", identity="pattern:some/model")).begin(0.0, True)
    book.of(endpoint("gone", identity="hash-9"))
    book.keep([endpoint("renamed", identity="hash-1"), endpoint("p", identity="pattern")])
    assert len(book.of(endpoint("renamed", identity="hash-1")).flights) == 1
    assert len(book.of(endpoint("p", identity="pattern:some/model")).flights) == 1
    assert book.of(endpoint("a", identity="hash-2")).flights == []
    assert book.num_in_flight() == 2


def test_changed_rules_reach_the_breaker_that_is_kept() -> None:
    """G65"""
    book = HealthBook()
    assert book.of(endpoint("a")).breaker.rules.cooldown_s == 10.0
    assert book.of(endpoint("a", cooldown_s=30.0)).breaker.rules.cooldown_s == 30.0
    assert book.of(endpoint("a", cooldown_s=0)).breaker.rules.cooldown_s == 0


def test_answer_lengths_are_remembered_per_model_and_mode() -> None:
    book = HealthBook()
    assert book.expected_num_out("m", True, 0.0) == 300
    for _ in range(20):
        book.answered("m", True, 40, 0.0)
    assert book.expected_num_out("m", True, 0.0) == pytest.approx(40, rel=0.06)
    assert book.expected_num_out("m", False, 0.0) == 300
    assert book.expected_num_out("n", True, 0.0) == 300


def test_invented_endpoints_push_out_the_longest_idle_but_none_in_flight() -> None:
    """G161"""
    book = HealthBook(max_entries=10)
    busy = book.of(endpoint("busy"))
    busy.begin(-1.0, True)
    for i in range(100):
        book.of(endpoint(f"e{i}")).last_started_at = float(i)
    assert len(book._healths) <= 11
    assert book.of(endpoint("busy")) is busy
