"""Statistics per endpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ionrouter.errors import FailureClass
from ionrouter.schema.events import AttemptRecord, RequestRecord
from ionrouter.schema.usage import Cost, Usage
from ionrouter.stats.book import PURPOSES, SeriesKey, StatsBook
from ionrouter.stats.resolution import width_for
from ionrouter.stats.sketch import MAX_BINS
from ionrouter.stats.window import Bucket

NOW = 1_700_000_000.0


def attempt(**changes: Any) -> AttemptRecord:
    fields: dict[str, Any] = {
        "endpoint_id": "a",
        "model_id": "m",
        "provider_name": "A",
        "started_at": NOW - 10,
        "stream": True,
        "duration_s": 2.0,
        "ttft_s": 0.25,
        "status": 200,
        "usage": Usage(10, 100),
        "cost": Cost(0.1, 0.2),
    }
    return AttemptRecord(**{**fields, **changes})


def book(*attempts: AttemptRecord) -> StatsBook:
    made = StatsBook()
    for one in attempts:
        made.record(one)
    return made


def test_latency_is_in_milliseconds_and_rises_with_the_percentile() -> None:
    stats = book(*(attempt(ttft_s=i / 100) for i in range(1, 101)))
    latency = stats.window("a", 1800, NOW).ttft_ms
    assert latency is not None and latency.n == 100
    assert latency.p50 == pytest.approx(500, rel=0.03)
    assert latency.p99 == pytest.approx(990, rel=0.03)
    assert latency.p50 < latency.p75 < latency.p90 < latency.p99


def test_throughput_counts_waiting_and_falls_with_the_percentile() -> None:
    stats = book(*(attempt(duration_s=float(i)) for i in range(1, 101)))
    rate = stats.window("a", 1800, NOW + 100).throughput
    assert rate is not None
    assert rate.p50 == pytest.approx(100 / 50, rel=0.05)
    assert rate.p99 == pytest.approx(100 / 99, rel=0.05)
    assert rate.p50 > rate.p75 > rate.p90 > rate.p99


def test_under_five_samples_nothing_is_claimed() -> None:
    four = book(*[attempt()] * 4).window("a", 1800, NOW)
    assert (four.ttft_ms, four.throughput, four.uptime, four.num_attempts) == (None, None, None, 4)
    five = book(*[attempt()] * 5).window("a", 1800, NOW)
    assert five.ttft_ms is not None and five.uptime == 100.0


@pytest.mark.parametrize(
    ("failure", "uptime"),
    [
        (FailureClass.TRANSIENT, 75.0),
        (FailureClass.DOMAIN, 75.0),
        (FailureClass.CAPACITY, 100.0),
        (FailureClass.REQUEST, 100.0),
        (FailureClass.ENDPOINT_REQUEST, 100.0),
        (FailureClass.CONTENT, 100.0),
        (FailureClass.CLIENT_LEFT, 100.0),
        (FailureClass.STOPPED, 100.0),
    ],
)
def test_uptime_blames_only_what_the_endpoint_did(failure: FailureClass, uptime: float) -> None:
    stats = book(*[attempt()] * 6, *[attempt(failure=failure, ttft_s=None)] * 2)
    summary = stats.window("a", 1800, NOW)
    assert summary.uptime == uptime
    assert summary.outcomes == {"ok": 6, failure.value: 2}


def test_an_abandoned_answer_counts_for_its_first_token_only() -> None:
    stats = book(*[attempt(failure=FailureClass.CLIENT_LEFT, duration_s=0.5)] * 5)
    summary = stats.window("a", 1800, NOW)
    assert summary.ttft_ms is not None and summary.ttft_ms.n == 5
    assert summary.throughput is None and summary.duration_ms is None


def test_windows_see_their_own_stretch() -> None:
    stats = book(
        *[attempt(started_at=NOW - 20)] * 5,
        *[attempt(started_at=NOW - 1200)] * 5,
        *[attempt(started_at=NOW - 40_000)] * 5,
        *[attempt(started_at=NOW - 100_000)] * 5,
    )
    assert [stats.window("a", s, NOW).num_attempts for s in (300, 1800, 86_400)] == [5, 10, 15]


def test_long_stretches_are_answered_at_a_coarser_resolution_that_is_stated() -> None:
    assert [width_for(s) for s in (300, 1800, 10_800, 86_400, 8 * 86_400)] == [60, 60, 60, 3600, 86_400]
    stats = book(*[attempt(started_at=NOW - 86_400 * day) for day in range(40) for _ in range(5)])
    month = stats.window("a", 30 * 86_400, NOW)
    assert month.resolution_s == 86_400 and 145 <= month.num_attempts <= 160
    assert stats.window("a", 300, NOW).resolution_s == 60
    assert stats.window("a", 86_400, NOW).resolution_s == 3600


def test_modes_are_kept_apart_and_merge_on_request() -> None:
    stats = book(*[attempt()] * 5, *[attempt(stream=False, ttft_s=None, duration_s=8.0)] * 5)
    assert stats.window("a", 300, NOW + 20, stream=False).ttft_ms is None
    assert stats.window("a", 300, NOW + 20, stream=True).num_attempts == 5
    both = stats.window("a", 300, NOW + 20)
    assert both.num_attempts == 10 and both.ttft_ms is not None and both.ttft_ms.n == 5


def test_tokens_and_cost_add_up() -> None:
    summary = book(*[attempt()] * 3).window("a", 300, NOW)
    assert (summary.prompt_tokens, summary.completion_tokens) == (30, 300)
    assert summary.cost == pytest.approx(0.9)


def test_time_per_token_leaves_the_first_token_out() -> None:
    tpot = book(*[attempt()] * 5).window("a", 300, NOW).tpot_ms
    assert tpot is not None and tpot.p50 == pytest.approx(1750 / 99, rel=0.02)


def test_an_unknown_endpoint_has_an_empty_summary() -> None:
    summary = StatsBook().window("nobody", 86_400, NOW)
    assert summary.num_attempts == 0 and summary.uptime is None


def test_a_request_record_brings_all_its_attempts() -> None:
    stats = StatsBook()
    record = RequestRecord(
        "gen-1", "chat", "m", True, NOW, 1.0, 200, attempts=(attempt(), attempt(endpoint_id="b"))
    )
    stats.observe(record)
    assert stats.subjects() == ("a", "b")


def test_the_room_taken_grows_with_time_not_with_samples() -> None:
    """G159"""
    stats = StatsBook()
    sizes = []
    for i in range(40_000):
        stats.record(attempt(started_at=NOW + i * 0.05, ttft_s=0.1 + (i % 1000) / 1000))
        if i in (20_000, 39_999):
            sizes.append(
                [len(window) for window in stats._series[SeriesKey("a", True, "main", "short")].windows]
            )
            bins = [
                len(s.bins)
                for b in stats._series[SeriesKey("a", True, "main", "short")].windows[0]._open.values()
                for s in b.sketches.values()
            ]
            assert max(bins) <= MAX_BINS
    minutes = 40_000 * 0.05 / 60
    assert sizes[1][0] <= minutes + 2  # by minutes, not by samples
    assert sizes[1][1:] == sizes[0][1:]


def test_invented_endpoints_push_out_the_longest_idle() -> None:
    stats = StatsBook(max_series=20)
    for i in range(100):
        stats.record(attempt(endpoint_id=f"e{i}"))
    assert len(stats.subjects()) <= 20
    assert "e99" in stats.subjects() and "e0" not in stats.subjects()


def test_shadows_and_probes_are_apart_and_hedges_are_callers_requests() -> None:
    roles = ("main", "main", "hedge", "shadow", "probe", "probe", "probe", "probe")
    stats = book(
        *(attempt(role=role, failure=FailureClass.TRANSIENT if role == "probe" else None) for role in roles)
    )
    counts = {purpose: stats.window("a", 300, NOW, purpose=purpose).num_attempts for purpose in PURPOSES}
    assert counts == {"main": 3, "shadow": 1, "probe": 4}
    assert stats.window("a", 300, NOW).outcomes == {"ok": 3}
    assert stats.subjects() == ("a",)


def test_a_late_end_counts_in_its_own_minute() -> None:
    stats = book(*(attempt(started_at=NOW + 60.0 * minute) for minute in (0, 2, 1, 2, 0)))
    minutes, hours, days = stats.series(SeriesKey("a", True, "main", "short")).windows  # type: ignore[union-attr]
    ended = [NOW + 60.0 * minute + 2.0 for minute in (0, 1, 2)]
    assert [minutes.since(at, at).outcomes["ok"] for at in ended] == [2, 1, 2]
    assert (
        hours.since(ended[0], ended[2]).outcomes["ok"] == days.since(ended[0], ended[2]).outcomes["ok"] == 5
    )


def test_every_way_to_read_is_preceded_by_what_is_still_to_be_told() -> None:
    """Who tells the book later than requests end is asked before anybody reads, by a new way, too."""
    key = SeriesKey("a", True, "main", "short")
    ways: dict[str, Callable[[StatsBook], object]] = {
        "keys": lambda book: book.keys,
        "items": lambda book: book.items(),
        "series": lambda book: book.series(key),
        "window": lambda book: book.window("a", 300.0, NOW),
        "merging": lambda book: list(book.merging(Bucket(), "a", 300.0, NOW)),
        "subjects": lambda book: book.subjects(),
    }
    others = {"observe", "record", "max_series", "max_keys", "before_reading", "names"}
    assert {name for name in dir(StatsBook) if not name.startswith("_")} == ways.keys() | others
    for name, read in ways.items():
        asked: list[str] = []
        read(StatsBook(before_reading=lambda asked=asked: asked.append("asked")))  # type: ignore[misc]
        assert asked, name
