"""Limits: reserving, settling, periods. By table and by property."""

from __future__ import annotations

import datetime
import sqlite3
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ionrouter.errors import RequestError
from ionrouter.store.generation import Generation, add_usage
from ionrouter.store.keys import ApiKey
from ionrouter.store.periods import DAY_S, LimitReset, day_of, first_day, iso, resets_at
from ionrouter.store.spending import SpendingBook, usd
from ionrouter.store.sqlite_file import SqliteLink, prepare

KEY = ApiKey("k", "name", "label", "inference", False, 0.0, limit=1.0)
MOMENTS = st.floats(0, 4e9, allow_nan=False)
RESETS: list[LimitReset | None] = ["daily", "weekly", "monthly", None]


def at(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("reset", "now", "begins", "ends"),
    [
        ("daily", "2026-11-28T23:59:59Z", "2026-11-28T00:00:00Z", "2026-11-29T00:00:00Z"),
        ("weekly", "2026-11-29T12:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"),  # a Sunday
        ("weekly", "2026-11-30T00:00:00Z", "2026-11-30T00:00:00Z", "2026-12-07T00:00:00Z"),  # a Monday
        ("monthly", "2026-12-31T23:00:00Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ("monthly", "2028-02-29T01:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
    ],
)
def test_periods_begin_at_midnight_utc(reset: LimitReset, now: str, begins: str, ends: str) -> None:
    assert first_day(reset, at(now)) * DAY_S == at(begins)
    assert resets_at(reset, at(now)) == at(ends)


@given(MOMENTS)
def test_a_period_holds_its_moment_and_ends_where_the_next_begins(now: float) -> None:
    for reset in RESETS[:3]:
        begin, end = first_day(reset, now) * DAY_S, resets_at(reset, now)
        assert end is not None
        assert begin <= now < end
        assert first_day(reset, end) * DAY_S == end
    assert first_day(None, now) == 0
    assert resets_at(None, now) is None


def test_what_was_spent_while_a_clock_was_ahead_is_of_its_own_period() -> None:
    """It had used up every period's limit until then."""
    book, monday = SpendingBook(), at("2026-11-30T08:00:00Z")
    book.settle("k", "ahead", 0.75, monday + 400 * DAY_S)
    for reset in RESETS[:3]:
        key = replace(KEY, limit_reset=reset)
        for days in (0, 1, 7, 40):
            assert book.remaining(key, monday + days * DAY_S) == 1.0
        assert book.remaining(key, monday + 400 * DAY_S) == 0.25
    assert book.remaining(KEY, monday) == 0.25  # a limit for ever counts it all


def test_a_limit_is_filled_to_its_end_by_many_requests() -> None:
    """10,000 times 0.01 add up to 100.00000000001425 in floats."""
    book, key = SpendingBook(), replace(KEY, limit=100.0)
    for i in range(9_999):
        book.settle("k", f"r{i}", 0.01, 0.0)
    book.reserve(key, "last", 0.01, 0.0)
    book.settle("k", "last", 0.01, 0.0)
    with pytest.raises(RequestError) as refused:
        book.reserve(key, "beyond", 0.01, 0.0)
    assert (refused.value.metadata or {})["limit_remaining"] == 0


def test_amounts_of_a_refusal_have_no_noise() -> None:
    book = SpendingBook()
    book.settle("k", "old", 0.1 + 0.2, 0.0)
    book.reserve(KEY, "running", 0.1 + 0.2, 0.0)
    with pytest.raises(RequestError) as refused:
        book.reserve(KEY, "new", 0.7 + 0.1, 0.0)
    told = refused.value.metadata or {}
    assert (told["limit_remaining"], told["reserved"], told["required"]) == (0.4, 0.3, 0.8)


def test_a_limit_counts_its_own_period_only() -> None:
    book, monday = SpendingBook(), at("2026-11-30T08:00:00Z")
    for days_ago, cost in ((0, 0.25), (1, 0.5), (40, 4.0)):
        book.settle("k", f"r{days_ago}", cost, monday - days_ago * DAY_S)
    assert book.remaining(replace(KEY, limit_reset="daily"), monday) == 0.75
    assert book.remaining(replace(KEY, limit_reset="weekly"), monday) == 0.75
    assert book.remaining(replace(KEY, limit_reset="monthly"), monday) == 0.25
    assert book.remaining(KEY, monday) == 0.0
    assert book.remaining(replace(KEY, limit=None), monday) is None
    book.reserve(replace(KEY, limit_reset="daily"), "new", 0.75, monday)
    with pytest.raises(RequestError) as refused:
        book.reserve(replace(KEY, limit_reset="daily"), "newer", 0.01, monday)
    assert refused.value.status == 402
    assert "daily limit is $1 and $0 is left, with $0.75 held" in str(refused.value)


def test_more_is_set_aside_while_there_is_room() -> None:
    book, key = SpendingBook(), replace(KEY, limit=1.0)
    book.reserve(key, "a", 0.5, 0.0)
    book.reserve_more(key, "a", 0.3, 0.0)
    with pytest.raises(RequestError, match=r"\$0.2 is left, with \$0.8 held"):
        book.reserve_more(key, "a", 0.3, 0.0)
    assert book.of("k").reserved == {"a": 0.8}
    book.settle("k", "a", 0.6, 0.0)
    assert book.of("k").reserved == {}


@given(
    limit=st.floats(0, 10, allow_nan=False),
    amounts=st.lists(
        st.tuples(st.floats(0, 3, allow_nan=False), st.floats(0, 1), st.booleans()), max_size=40
    ),
)
def test_whatever_comes_the_limit_holds(limit: float, amounts: list[tuple[float, float, bool]]) -> None:
    """Each request costs a share of what it reserved; some run on until the end."""
    book, key, running = SpendingBook(), replace(KEY, limit=limit), {}
    for number, (amount, share, ends_at_once) in enumerate(amounts):
        name = f"r{number}"
        try:
            book.reserve(key, name, amount, 0.0)
        except RequestError:
            assert amount > 0
            continue
        running[name] = amount * share
        if ends_at_once:
            book.settle("k", name, running.pop(name), 0.0)
    for name, cost in running.items():
        book.settle("k", name, cost, 0.0)
    assert book.total() <= limit + 1e-9
    assert book.of("k").reserved == {}


@given(st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.floats(0, 5), MOMENTS), max_size=30))
def test_the_file_adds_up_to_what_memory_does(spent: list[tuple[str | None, float, float]]) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    prepare(connection)
    book = SpendingBook()
    for number, (key, cost, moment) in enumerate(spent):
        book.settle(key, f"r{number}", cost, moment)
        row = Generation("g", "finished", key, "chat", "m", False, moment, cost=cost)
        connection.execute(*add_usage(row))
    loaded = SpendingBook.load(SqliteLink(connection))
    for key in (None, "a", "b"):
        mine, stored = book.of(key), loaded.of(key)
        assert stored.days == pytest.approx(mine.days)
        assert stored.last_used_at == mine.last_used_at


def test_a_start_while_the_clock_is_ahead_leaves_this_month_its_days() -> None:
    """They were lumped together under a day to come: after that, this month's limit was all there again."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    prepare(connection)
    monday = at("2026-11-30T08:00:00Z")
    connection.execute("INSERT INTO key_usage VALUES ('k', ?, 0.75, 1, ?)", (day_of(monday), monday))
    book = SpendingBook.load(SqliteLink(connection), day_of(monday) + 1000)
    assert book.remaining(replace(KEY, limit_reset="monthly"), monday) == 0.25


def test_a_use_that_has_not_come_yet_is_not_the_last() -> None:
    """It was shown as the last use until that date."""
    book, now = SpendingBook(clock=lambda: now), 1e9
    book.settle("k", "a", 0.0, now + 9e6)  # the clock was ahead
    assert book.of("k").last_used_at == now + 9e6
    book.settle("k", "b", 0.0, now)
    assert book.of("k").last_used_at == now
    book.take_over([("k", 1, 0.0, now + 9e6), ("k", 2, 0.0, now - 1)])
    assert book.of("k").last_used_at == now
    book.take_over([("k", 2, 0.0, now + 1)])  # another server's clock, a little ahead
    assert book.of("k").last_used_at == now + 1


def test_what_is_long_over_is_one_day_and_the_total_is_no_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 keys a few months old are a million days: GET /credits added them up on the event loop."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    prepare(connection)
    for day in range(1000, 1100):
        connection.execute("INSERT INTO key_usage VALUES ('a', ?, 0.5, 1, ?)", (day, float(day)))
    connection.execute("INSERT INTO key_usage VALUES ('b', 3, 2.0, 1, 7.0)")
    monkeypatch.setattr("ionrouter.store.spending.KEPT_DAYS", 1)
    book = SpendingBook.load(SqliteLink(connection), 1099)
    assert book.of("a").days == {1097: 49.0, 1098: 0.5, 1099: 0.5}
    assert (book.of("a").last_used_at, book.of("b").last_used_at) == (1099.0, 7.0)
    assert (book.of("a").since(None, 1099 * DAY_S), book.of("b").since(None, 1099 * DAY_S)) == (50.0, 2.0)
    assert book.total() == 52.0
    book.settle("a", "r", 1.5, 1099 * DAY_S)
    book.take_over([("a", 1099, 2.5, 0.0), ("c", 1099, 1.0, 0.0)])  # another server's 0.5 with it
    assert book.total() == 55.0
    book.of("a").days = {}  # nobody adds them up again
    assert book.total() == 55.0


def test_dollars_and_times_are_written_for_people() -> None:
    assert [usd(a) for a in (5.0, 0.0005, 0.0, 12.5)] == ["$5", "$0.0005", "$0", "$12.5"]
    assert iso(1.5) == "1970-01-01T00:00:01.500Z"
