"""What lists publish of endpoints: the figures of the book, a bucket a step."""

from __future__ import annotations

from typing import Any

from ionrouter.errors import FailureClass
from ionrouter.stats.book import StatsBook
from ionrouter.stats.published import medians, summaries
from tests.stats.test_book import NOW, attempt, book


def filled() -> StatsBook:
    return book(
        *[attempt(started_at=NOW - 20 - i, ttft_s=0.1 + i / 10) for i in range(9)],
        *[attempt(started_at=NOW - 600, stream=False, ttft_s=None)] * 5,
        *[attempt(started_at=NOW - 7200, failure=FailureClass.TRANSIENT, ttft_s=None)] * 6,
        *[attempt(endpoint_id="b", started_at=NOW - 20, ttft_s=9.0)] * 5,
        *[attempt(role="probe", started_at=NOW - 20)] * 7,
    )


def last(steps: Any) -> Any:
    *_, found = steps
    return found


def test_a_summary_is_what_the_book_says_of_each_window() -> None:
    made = filled()
    told = last(summaries(made, ["a", "b", "nobody"], NOW))
    assert list(told) == ["a", "b", "nobody"]
    for endpoint_id, summary in told.items():
        for window, seconds in (("last_5m", 300), ("last_30m", 1800), ("last_1d", 86_400)):
            found, whole = getattr(summary, window), made.window(endpoint_id, seconds, NOW)
            assert (found.num_attempts, found.uptime) == (whole.num_attempts, whole.uptime)
            assert found.resolution_s == whole.resolution_s
        recent = made.window(endpoint_id, 1800, NOW)
        assert (summary.last_30m.ttft_ms, summary.last_30m.throughput) == (recent.ttft_ms, recent.throughput)
    assert told["a"].last_1d.uptime == 70.0 and told["a"].last_30m.uptime == 100.0
    assert last(summaries(made, ["a"], NOW, "probe"))["a"].last_5m.num_attempts == 7


def test_medians_are_of_those_with_enough_samples() -> None:
    made = filled()
    for speed in ("ttft_ms", "throughput"):
        told = last(medians(made, ["a", "b", "nobody"], speed, 1800, NOW))
        assert told.keys() == {"a", "b"}
        assert told["a"] == getattr(made.window("a", 1800, NOW), speed).p50
    assert last(medians(made, [], "ttft_ms", 1800, NOW)) == {}
