"""Tokens of each model: of the right stretch, without a look at sketches, a series at a time."""

from __future__ import annotations

import random
from itertools import pairwise
from time import thread_time

from ionrouter.stats.book import SeriesKey, StatsBook
from ionrouter.stats.popularity import WEEK_S, steps
from ionrouter.stats.resolution import HOUR
from ionrouter.stats.window import Bucket, PackedBucket
from tests.stats.test_book import NOW, attempt, book


def told(made: StatsBook) -> dict[str, int]:
    *_, last = steps(made, NOW)
    assert last is not None
    return dict(last)


def test_tokens_of_all_endpoints_modes_and_classes_are_added_up() -> None:
    made = book(
        attempt(),
        attempt(stream=False, endpoint_id="b"),
        attempt(usage=None),
        attempt(model_id="other", endpoint_id="c"),
    )
    assert told(made) == {"m": 220, "other": 110}
    assert told(StatsBook()) == {}


def test_the_stretch_is_seven_days_to_the_hour() -> None:
    begin = NOW - WEEK_S
    inside, before = begin // HOUR.width_s * HOUR.width_s, begin // HOUR.width_s * HOUR.width_s - 1
    assert told(book(attempt(started_at=inside, duration_s=1.0))) == {"m": 110}
    assert told(book(attempt(started_at=before - 1.0, duration_s=1.0))) == {"m": 0}


def test_a_full_book_is_read_in_short_steps() -> None:
    made, bucket, rng = StatsBook(), Bucket(), random.Random(1)
    for _ in range(300):
        bucket.add("ok", {name: rng.lognormvariate(0, 2) for name in ("ttft_s", "duration_s", "tpot_s")})
    bucket.prompt_tokens = 7
    packed = PackedBucket.of(bucket)
    for number in range(100):
        series = made.series(SeriesKey(f"e{number}", True, "main", "short"))
        assert series is not None
        series.model_id = "m"
        hours = next(window for window in series.windows if window.width_s == HOUR.width_s)
        for hour in range(HOUR.max_buckets):
            hours.restore(int(NOW // HOUR.width_s) - hour, packed)
    moments = [thread_time(), *(thread_time() for _ in steps(made, NOW))]
    assert told(made) == {"m": 100 * 169 * 7}
    taken = sorted(after - before for before, after in pairwise(moments))
    assert taken[50] < 0.005  # of CPU; merging takes 20 ms
