"""What refusals teach of a rate limit, also those of many requests that were sent at once."""

from __future__ import annotations

import math

import pytest

from ionrouter.balancing.health import BACKOFF_S, Health
from ionrouter.balancing.pace import LOWEST, Pace
from ionrouter.errors import FailureClass, UpstreamError


def burst(pace: Pace, at: float, taken: int, refused: int) -> list[bool]:
    """Send so many at once; refusals come 50 ms later, one after the other, before any answer."""
    for _ in range(taken + refused):
        pace.send(at)
    return [pace.refuse(at + 0.05 + i / 1000, at) for i in range(refused)]


@pytest.mark.parametrize(("taken", "refused"), [(30, 70), (30, 1), (5, 200), (300, 20)])
def test_a_burst_teaches_what_was_taken_of_it(taken: int, refused: int) -> None:
    pace = Pace()
    news = burst(pace, 100.0, taken, refused)
    assert news == [True, *[False] * (refused - 1)]
    assert 0.5 * taken < pace.rate(100.3) <= taken


def test_the_quiet_before_a_burst_is_not_the_limit() -> None:
    pace = Pace()
    for i in range(100):
        pace.send(i / 5)
    burst(pace, 20.0, 30, 70)
    assert 15 < pace.rate(20.2) <= 35


def test_a_refusal_at_the_pace_lowers_it_by_a_tenth() -> None:
    pace = Pace()
    burst(pace, 0.0, 30, 1)
    for i in range(1, 100):
        pace.send(i / 30)
    before = pace.rate(3.4)
    pace.send(3.4)
    assert pace.refuse(3.4, 3.4) and pace.rate(3.4) == pytest.approx(0.9 * before)


def test_who_takes_nothing_at_all_has_shown_no_pace() -> None:
    """A used-up quota: how long it lasts is for Retry-After or the back-off, and then all is as before."""
    pace = Pace()
    burst(pace, 0.0, 0, 100)
    assert pace.rate(1.0) == math.inf
    burst(pace, 10.0, 30, 70)
    known = pace.rate(70.0)
    burst(pace, 70.0, 0, 100)
    assert pace.rate(70.2) == pytest.approx(0.9 * known, rel=0.01)


def test_refusals_that_come_late_teach_the_same() -> None:
    pace = Pace()
    for _ in range(100):
        pace.send(0.0)
    for i in range(70):
        pace.refuse(0.1 + i / 20, 0.0)
    assert pace.rate(3.6) == pytest.approx(0.9 * 30 * math.log(2), rel=0.2)


def test_it_never_falls_to_nothing() -> None:
    pace = Pace()
    for i in range(100):
        pace.send(float(i))
        pace.refuse(float(i), float(i))
        pace.send(float(i))
    assert pace.rate(99.0) >= LOWEST


def test_those_that_were_sent_together_back_off_once() -> None:
    """Seventy of one burst were sixty seconds before."""
    health, error = Health(), UpstreamError(FailureClass.CAPACITY, "later", status=429)
    flights = [health.begin(0.0, True) for _ in range(100)]
    for flight in flights[:70]:
        health.end(flight)
        health.fail(0.05, error, 0.05, 0.0, after_commit=False)
    assert health.retry_at == 0.05 + BACKOFF_S
    health.commit(0.4, flights[70], 0.4)
    health.fail(0.5, error, 0.5, 0.0, after_commit=False)  # one of them that was refused late
    assert health.retry_at == 0.5 + BACKOFF_S
