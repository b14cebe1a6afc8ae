"""Questions about the statistics: a step a bucket, a row at a time, in any order, in little memory."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from ionrouter.stats.book import SeriesKey, StatsBook
from ionrouter.stats.query import Dimension, Question, Row, answer, steps
from ionrouter.stats.ranking import Order, ranked, sortable
from ionrouter.stats.resolution import HOUR
from ionrouter.stats.window import Bucket, PackedBucket

NOW = 1_700_000_000.0
MB = 2**20
NUM_HOURS = 140
ALL: tuple[Dimension, ...] = ("endpoint", "stream", "class")


def packed(rng: random.Random, num_requests: int, spread: float = 1.0) -> PackedBucket:
    bucket = Bucket()
    for _ in range(num_requests):
        seconds = rng.lognormvariate(0, spread)
        samples = {
            "ttft_s": seconds,
            "duration_s": 2 * seconds,
            "queue_s": seconds / 9,
            "throughput": 1 / seconds,
        }
        bucket.add(rng.choice(["ok", "transient"]), samples)
    return PackedBucket.of(bucket)


def hourly(num_endpoints: int, num_hours: int, make: Callable[[], PackedBucket]) -> StatsBook:
    """Both modes of each endpoint, a bucket an hour up to now."""
    book = StatsBook()
    for number in range(num_endpoints):
        for stream in (True, False):
            series = book.series(SeriesKey(f"e{number}", stream, "main", "short"))
            assert series is not None
            series.model_id, series.provider_name = f"m{number % 2}", "P"
            window = next(w for w in series.windows if w.width_s == HOUR.width_s)
            for hour in range(num_hours):
                window.restore(int(NOW // HOUR.width_s) - hour, make())
    return book


def asked(**changes: Any) -> Question:
    """Of six days: the longest that hours answer by themselves, too."""
    fields: dict[str, Any] = {"group_by": ALL, "resolution": "hour", **changes}
    return Question(NOW - 6 * 86_400, NOW, **fields)


@pytest.fixture(scope="module")
def uneven() -> StatsBook:
    """Hours with no requests, too few for a percentile, and many."""
    rng = random.Random(6)
    return hourly(3, 40, lambda: packed(rng, rng.choice([0, 2, 7, 7, 30])))


def at(row: Row, path: tuple[str, ...]) -> Any:
    return row[path[0]] if len(path) == 1 else row[path[0]][path[1]]


@pytest.mark.parametrize("resolution", [None, "hour"])
@pytest.mark.parametrize("group_by", [ALL, ("model",), ()])
@pytest.mark.parametrize("is_descending", [False, True])
@pytest.mark.parametrize("limit", [0, 1, 7, 10_000])
def test_rows_in_an_order_are_the_first_of_all_rows_sorted(
    uneven: StatsBook, resolution: Any, group_by: Any, is_descending: bool, limit: int
) -> None:
    question = asked(group_by=group_by, resolution=resolution, percentiles=(50.0, 99.9))
    rows = answer(uneven, question)
    assert rows
    paths = {("requests",), ("uptime",), ("ttft_ms", "p99.9"), ("queue_ms", "n"), ("endpoint",)}
    for path in paths & sortable(question):
        known = [row for row in rows if at(row, path) is not None]
        known.sort(key=lambda row: at(row, path), reverse=is_descending)
        wanted = known + [row for row in rows if at(row, path) is None]
        found = ranked(uneven, question, Order(path, is_descending), limit)
        assert [row for row in found if row is not None] == wanted[:limit], path


def test_what_may_be_sorted_by_is_every_figure_of_a_row(uneven: StatsBook) -> None:
    question = asked(percentiles=(50.0, 99.9))
    row = answer(uneven, question)[0]
    figures = {
        (name, part) if isinstance(value, dict) else (name,)
        for name, value in row.items()
        if name != "outcomes"
        for part in (value if isinstance(value, dict) else [""])
    }
    assert sortable(question) == figures


def test_between_two_steps_one_bucket_is_read_at_most(uneven: StatsBook) -> None:
    """So whoever takes the steps can let others have their turn as often as that."""
    num_buckets = 3 * 2 * 40
    for group_by in (ALL, ("model",), ()):
        for resolution in (None, "hour"):
            question = asked(group_by=group_by, resolution=resolution)
            assert sum(step is None for step in steps(uneven, question)) >= num_buckets
            order = Order(("requests",))
            assert sum(step is None for step in ranked(uneven, question, order, 5)) >= num_buckets


def test_steps_go_on_while_more_is_recorded(uneven: StatsBook) -> None:
    rng = random.Random(7)
    book = hourly(3, 40, lambda: packed(rng, 10))
    question, rows = asked(), list[Row]()
    for number, step in enumerate(steps(book, question)):
        if step is not None:
            rows.append(step)
        if number % 10 == 0:  # new series, new buckets, and a series that goes
            for _, series in book.items()[:2]:
                bucket = series.windows[1].at(NOW - number % 5 * HOUR.width_s)
                assert bucket is not None
                bucket.add("ok", {"ttft_s": 1.0})
            book.series(SeriesKey(f"new-{number}", True, "main", "short"))
    assert len(rows) == 3 * 2 * 40


def peak_mb(rows: Iterator[Row | None]) -> tuple[int, float]:
    """How many rows come, and what they take while they come and go."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        num_rows = sum(row is not None for row in rows)
        return num_rows, (tracemalloc.get_traced_memory()[1] - before) / MB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("order", [None, Order(("ttft_ms", "p99"), is_descending=True), Order(("cost",))])
def test_rows_are_held_one_at_a_time(order: Order | None) -> None:
    """Every row with its sketches is some 30 KB: held together, these would be 20 MB."""
    shared = packed(random.Random(8), 200, spread=2.0)
    book, question = hourly(2, NUM_HOURS, lambda: shared), asked()
    made = ranked(book, question, order, 100_000) if order else steps(book, question)
    num_rows, peak = peak_mb(made)
    assert num_rows == 2 * 2 * NUM_HOURS
    assert peak < 0.7


def test_one_row_of_many_buckets_takes_as_little() -> None:
    shared = packed(random.Random(9), 200, spread=2.0)
    num_rows, peak = peak_mb(steps(hourly(2, NUM_HOURS, lambda: shared), asked(group_by=(), resolution=None)))
    assert num_rows == 1
    assert peak < 0.5


@pytest.mark.parametrize("order", [None, Order(("cost",))])
def test_no_step_looks_at_more_than_one_series(order: Order | None) -> None:
    """The minute under way went to the windows of all series before the first step: 50 us each, at once."""
    book = StatsBook()
    for number in range(50):
        series = book.series(SeriesKey(f"e{number}", True, "main", "short"))
        assert series is not None
        series.measure(NOW, {"ttft_s": 1.0})
    waiting = [len([s for _, s in book.items() if s._latest])]
    question = asked(resolution=None)
    for _ in ranked(book, question, order, 100) if order else steps(book, question):
        waiting.append(len([s for _, s in book.items() if s._latest]))
    assert waiting[0] == 50 and waiting[-1] == 0
    assert max(before - after for before, after in pairwise(waiting)) == 1


@pytest.mark.parametrize("resolution", [None, "hour"])
def test_stretches_that_follow_one_another_share_no_bucket(resolution: Any) -> None:
    rng, begin = random.Random(7), NOW // HOUR.width_s * HOUR.width_s
    book = hourly(1, 5, lambda: packed(rng, 10))
    hours = [(begin - i * HOUR.width_s, begin - (i - 1) * HOUR.width_s) for i in range(5)]
    for since, until in hours:
        question = Question(since, until, resolution=resolution, age_s=5 * 86_400.0 * 2)
        assert [row["requests"] for row in answer(book, replace(question, until=until - 1e-3))] == [20]
        assert [row["requests"] for row in answer(book, question)] == [20]
        later = answer(book, replace(question, until=until + 1e-3))
        assert sum(row["requests"] for row in later) == (20 if until > begin else 40)
