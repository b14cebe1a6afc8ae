"""How many tokens each model has processed, from the amounts of the buckets alone. Pure.

Nothing is merged but numbers: the sketches of a week of many endpoints would take seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ionrouter.stats.book import StatsBook
from ionrouter.stats.resolution import HOUR

WEEK_S = 7 * 86_400.0


def steps(book: StatsBook, now: float, stretch_s: float = WEEK_S) -> Iterator[Counter[str] | None]:
    """Model -> tokens in and out of callers' requests in the last `stretch_s`, to the hour.

    Worked out as it is taken: between two steps one series is read, and the last step is the answer.
    """
    tokens = Counter[str]()
    for key, series in book.items():
        if key.purpose == "main":
            hours = next(window for window in series.windows if window.width_s == HOUR.width_s)
            tokens[series.model_id] += hours.num_tokens(now - stretch_s, now)
        yield None
    yield tokens
