"""Health: what each failure class does to it, and what reading it says."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.balancing.health import BACKOFF_S, MAX_BACKOFF_S, Flight, Health, HealthBook
from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.routing.table import BreakerRules
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
        FailureClass.OWN_LIMIT,
        FailureClass.CLIENT_LEFT,
        FailureClass.STOPPED,
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


def test_an_endpoint_that_comes_when_the_book_is_full_is_remembered() -> None:
    book = HealthBook(max_entries=10)
    for i in range(10):
        book.of(endpoint(f"e{i}")).last_started_at = float(i)
    late = book.of(endpoint("late"))
    assert book.of(endpoint("late")) is late
    late.begin(11.0, True)
    for i in range(20):
        book.of(endpoint(f"f{i}")).last_started_at = 12.0 + i
    assert book.of(endpoint("late")) is late


def test_a_full_book_is_looked_through_once_for_many_invented_endpoints() -> None:
    """Else each name that a client invents costs milliseconds of everybody's event loop."""

    class Looked(dict[str, Health]):
        num_looks = 0

        def items(self) -> Any:
            self.num_looks += 1
            return super().items()

    book, healths = HealthBook(max_entries=640), Looked()
    book._healths = healths
    for i in range(1280):
        book.of(endpoint(f"e{i}")).last_started_at = float(i)
    assert len(healths) <= 640
    assert healths.num_looks <= 64


def test_lengths_of_invented_models_push_out_those_not_used_for_longest() -> None:
    book = HealthBook(max_entries=10)
    for i in range(100):
        book.answered("listed", True, 40, float(i))
        book.answered(f"invented-{i}", True, 900, float(i))
    assert book.expected_num_out("listed", True, 100.0) == pytest.approx(40, rel=0.1)
    assert book.expected_num_out("invented-5", True, 100.0) == 300
    assert len(book._num_out) == 10


def hanging_together(num: int) -> tuple[Health, list[Flight]]:
    """An endpoint that usually answers within 0.3 s; `num` attempts of second 10 wait in vain."""
    health = Health()
    usual = health.begin(9.0, stream=True)
    health.commit(9.3, usual, 0.3)
    health.end(usual)
    return health, [health.begin(10.0 + i / 100, stream=True) for i in range(num)]


def times_out(health: Health, flight: Flight, now: float) -> None:
    health.end(flight)
    health.fail(now, error(FailureClass.TRANSIENT), now - flight.started_at, 0.0, after_commit=False)


def answers(health: Health, now: float) -> None:
    flight = health.begin(now - 0.3, stream=True)
    health.commit(now, flight, 0.3)
    health.end(flight)


def test_attempts_that_wait_together_are_silence_until_the_cooldown_is_over() -> None:
    health, _ = hanging_together(3)
    assert not health.is_stalled(11.1, stream=True)  # four times 0.3 s, not yet
    assert health.is_stalled(11.3, stream=True) and health.is_stalled(19.9, stream=True)
    assert not health.is_stalled(20.1, stream=True)  # somebody may try
    trial = health.begin(20.1, stream=True)
    assert health.is_stalled(20.2, stream=True)  # and nobody else
    health.commit(20.4, trial, 0.3)
    assert not health.is_stalled(20.4, stream=True)
    assert not hanging_together(2)[0].is_stalled(11.3, stream=True)


def test_who_waits_for_a_place_of_ours_says_nothing_of_the_endpoint() -> None:
    health, flights = hanging_together(3)
    for flight in flights:
        flight.hold()
    assert not health.is_stalled(12.0, stream=True)
    assert health.oldest_wait_s(12.0, stream=True) == 0.0
    health.give_up(12.0, flights[0], 10.0)
    assert health.speeds[True].ttft_s.value == pytest.approx(0.3)
    for flight in flights:
        flight.go(5.0)
    assert health.oldest_wait_s(16.0, stream=True) == pytest.approx(16.0 - flights[0].started_at)
    assert not health.is_stalled(16.0, stream=True) and health.is_stalled(17.0, stream=True)


def test_cooldown_0_keeps_the_breaker_closed_and_not_silence_unseen() -> None:
    health, _ = hanging_together(3)
    health.breaker.rules = BreakerRules(cooldown_s=0.0)
    assert health.is_stalled(11.3, stream=True) and not health.is_stalled(20.1, stream=True)


def test_a_silence_that_is_over_is_one_failure_and_opens_no_breaker() -> None:
    health, hanging = hanging_together(12)
    answers(health, 21.0)
    before = health.before.weight(39.0)
    for flight in hanging:
        times_out(health, flight, 40.0)
    assert health.before.weight(40.0) - before == pytest.approx(1.0, abs=0.01)
    assert health.breaker.allows(40.0)
    answers(health, 41.0)
    lone = health.begin(42.0, stream=True)
    times_out(health, lone, 72.0)  # nobody else waited
    assert health.before.mean(72.0, 0.0, 0.0) == pytest.approx(2 / 5, abs=0.02)


def test_a_silence_that_lasts_is_one_failure_and_opens_the_breaker() -> None:
    health, hanging = hanging_together(12)
    for flight in hanging:
        times_out(health, flight, 40.0)
    assert health.before.mean(40.0, 0.0, 0.0) == pytest.approx(1 / 2, abs=0.02)
    assert not health.breaker.allows(40.0)


def test_the_next_silence_is_another_event() -> None:
    health, hanging = hanging_together(3)
    for flight in hanging:
        times_out(health, flight, 40.0)
    answers(health, 51.0)
    later = [health.begin(52.0 + i / 100, stream=True) for i in range(3)]
    answers(health, 63.0)
    for flight in later:
        times_out(health, flight, 82.0)
    assert health.before.mean(82.0, 0.0, 0.0) == pytest.approx(2 / 5, abs=0.03)
    assert health.breaker.allows(82.0)


def test_one_that_began_after_a_silence_was_found_out_is_news() -> None:
    health, hanging = hanging_together(3)
    health.breaker.rules = BreakerRules(cooldown_s=0.0)
    for flight in hanging:
        times_out(health, flight, 40.0)
    for flight in [health.begin(41.0, stream=True) for _ in range(3)]:
        times_out(health, flight, 71.0)
    assert health.before.mean(71.0, 0.0, 0.0) == pytest.approx(2 / 3, abs=0.02)


def test_a_slow_answer_is_no_news_once_a_later_one_is_whole() -> None:
    health = Health()
    old, later = health.begin(0.0, stream=True), health.begin(10.0, stream=True)
    health.finish(11.0, later, Usage(10, 101), decode_s=1.0)
    health.finish(20.0, old, Usage(10, 101), decode_s=19.0)
    speed = health.speeds[True]
    assert speed.token_s.value == pytest.approx(0.01) and speed.pace_s.value == pytest.approx(1 / 201)
    health.finish(40.0, health.begin(21.0, stream=True), Usage(10, 101), decode_s=19.0)
    assert speed.token_s.value == pytest.approx(0.19)  # bad news of now, at once
    health.finish(40.1, later, Usage(10, 101), decode_s=1.0)
    assert speed.token_s.value < 0.19  # good news is welcome from anybody


def test_streamed_answers_make_no_whole_one_old() -> None:
    health = Health()
    whole, streamed = health.begin(0.0, stream=False), health.begin(1.0, stream=True)
    health.finish(2.0, streamed, Usage(10, 100), decode_s=1.0)
    health.finish(20.0, whole, Usage(10, 100), None)
    assert health.speeds[False].pace_s.value == pytest.approx(0.1)


@pytest.mark.parametrize("stream", [True, False])
def test_old_hangs_are_no_row_of_failures_once_later_requests_were_answered(stream: bool) -> None:
    health = Health()
    hung = [health.begin(10.0 + i / 100, stream) for i in range(6)]
    for second in range(11, 41):
        answers(health, float(second))
    for flight in hung:
        times_out(health, flight, 40.5)
    assert health.breaker.is_closed
    assert health.before.mean(40.5, 0.0, 0.0) > 0.0 and health.fail_s.weight(40.5) == 6.0
    for flight in [health.begin(41.0, stream) for _ in range(3)]:
        assert health.breaker.is_closed
        times_out(health, flight, 71.0)
    assert not health.breaker.is_closed


def test_requests_that_are_overtaken_still_open_the_breaker_where_half_of_them_fail() -> None:
    health = Health()
    for second in range(12):
        early = health.begin(float(second), stream=False)
        answers(health, second + 0.4)
        times_out(health, early, second + 0.5)
    assert not health.breaker.is_closed
