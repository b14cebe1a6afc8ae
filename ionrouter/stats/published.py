"""What the lists of models and endpoints tell of each endpoint, worked out as it is taken. Pure.

A busy endpoint is hundreds of buckets: between two steps one is read, and the last step is the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from ionrouter.stats.book import Purpose, StatsBook, WindowSummary, summarise
from ionrouter.stats.resolution import width_for
from ionrouter.stats.window import Bucket

Speed = Literal["ttft_ms", "throughput"]
_SKETCHES: dict[Speed, str] = {"ttft_ms": "ttft_s", "throughput": "throughput"}
# Window -> its seconds, and which sketches are told of it: merging the others would take most of the time.
_WINDOWS: dict[str, tuple[float, tuple[str, ...]]] = {
    "5m": (300.0, ()),
    "30m": (1800.0, tuple(_SKETCHES.values())),
    "1d": (86_400.0, ()),
}


@dataclass(frozen=True, slots=True)
class EndpointSummary:
    """What GET .../endpoints publishes of one endpoint, both streaming modes together.

    Counts of all three windows; of `last_30m` time to the first token and throughput, too.
    """

    last_5m: WindowSummary
    last_30m: WindowSummary
    last_1d: WindowSummary


def summaries(
    book: StatsBook, subjects: Iterable[str], now: float, purpose: Purpose = "main"
) -> Iterator[dict[str, EndpointSummary] | None]:
    """Subject -> its summary over the published windows."""
    found: dict[str, EndpointSummary] = {}
    for subject in subjects:
        last: dict[str, WindowSummary] = {}
        for name, (seconds, metrics) in _WINDOWS.items():
            total = Bucket()
            yield from book.merging(total, subject, seconds, now, purpose=purpose, metrics=metrics)
            last[name] = summarise(total, width_for(seconds))
        found[subject] = EndpointSummary(last["5m"], last["30m"], last["1d"])
    yield found


def medians(
    book: StatsBook, subjects: Iterable[str], speed: Speed, seconds: float, now: float
) -> Iterator[dict[str, float] | None]:
    """Subject -> its median over the last `seconds`; those of too few samples are left out."""
    found: dict[str, float] = {}
    for subject in subjects:
        total = Bucket()
        yield from book.merging(total, subject, seconds, now, metrics=(_SKETCHES[speed],))
        measured = getattr(summarise(total, width_for(seconds)), speed)
        if measured is not None:
            found[subject] = measured.p50
    yield found
