"""Questions about the statistics: filters, groups, any percentile, any stretch, by minute, hour or day. Pure.

The definitions of the figures are in docs/api.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ionrouter.errors import FailureClass
from ionrouter.stats.book import MIN_SAMPLES, Purpose, Series, SeriesKey, StatsBook, uptime_of
from ionrouter.stats.resolution import GRAINS, HOUR, Resolution, width_for
from ionrouter.stats.window import OK, Bucket, Window

Dimension = Literal["endpoint", "model", "provider", "stream", "class", "key"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
MAX_STRETCH_S = float(HOUR.kept_s)
# Metric -> what its sketch is called, what its seconds are multiplied by, whether larger is better.
METRICS: Mapping[str, tuple[str, float, bool]] = {
    "ttft_ms": ("ttft_s", 1000.0, False),
    "ttft_client_ms": ("ttft_client_s", 1000.0, False),
    "tpot_ms": ("tpot_s", 1000.0, False),
    "max_gap_ms": ("max_gap_s", 1000.0, False),
    "duration_ms": ("duration_s", 1000.0, False),
    "queue_ms": ("queue_s", 1000.0, False),
    "throughput": ("throughput", 1.0, True),
}
DEFAULT_PERCENTILES = (50.0, 90.0, 99.0)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. No `resolution`: one row a group.

    `since` and `until` are seconds since the epoch. The bucket that begins at `until` is not meant any more:
    stretches that follow one another share nothing where a bucket ends.
    """

    since: float
    until: float
    filters: Mapping[Dimension, frozenset[str]] = field(default_factory=dict)
    group_by: tuple[Dimension, ...] = ("endpoint",)
    percentiles: tuple[float, ...] = DEFAULT_PERCENTILES
    resolution: Resolution | None = None
    purpose: Purpose = "main"
    age_s: float = 0.0  # of `since`: minutes are kept for two days, hours for 31

    @property
    def width_s(self) -> int:
        """The buckets it is answered from: as asked, else the finest that keeps so long a stretch."""
        if self.resolution is not None:
            return GRAINS[self.resolution].width_s
        return width_for(self.until - self.since, self.age_s)

    def numbers(self, window: Window) -> range:
        """Numbers of a window's buckets that are asked about, kept or not."""
        return window.numbers(self.since, math.nextafter(self.until, -math.inf))

    @property
    def reads_keys(self) -> bool:
        """Whether keys are asked about: those have hours alone, and no endpoints."""
        return "key" in self.group_by or "key" in self.filters


Group = tuple[str, ...]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row comes from: a group's windows, and the bucket of each; no `number`: all of the stretch."""

    group: Group
    windows: Sequence[Window]
    number: int | None


def answer(book: StatsBook, question: Question) -> list[Row]:
    """One row for each group and bucket that has something, in the order of their names and times."""
    return [row for row in steps(book, question) if row is not None]


def steps(book: StatsBook, question: Question) -> Iterator[Row | None]:
    """The same, worked out as it is taken: between two steps one bucket is read. None: no row is ready yet.

    Only the row under way is held in memory. What is recorded meanwhile may or may not be in rows to come.
    """
    for place in places(book, question):
        if place is None:
            yield None
        else:
            yield from row_at(place, question)


def places(book: StatsBook, question: Question) -> Iterator[Place | None]:
    """Where rows may be, in their order. None, a step for each series: they are still being looked for.

    What happened in the minute under way goes to a series' windows when somebody looks: 50 us a series.
    """
    groups: dict[Group, list[Window]] = {}
    for names, window in _windows(book, question):
        yield None
        if all(names[dimension] in wanted for dimension, wanted in question.filters.items()):
            groups.setdefault(tuple(names[dimension] for dimension in question.group_by), []).append(window)
    for group, windows in sorted(groups.items(), key=lambda item: item[0]):
        if question.resolution is None:
            yield Place(group, windows, None)
            continue
        for number in question.numbers(windows[0]):
            yield Place(group, windows, number)


def row_at(place: Place, question: Question) -> Iterator[Row | None]:
    """Merge what is there, a step for each bucket; the last step is the row, if there is one."""
    total, number = Bucket(), place.number
    for window in place.windows:
        numbers = question.numbers(window) if number is None else (number,)
        for each in numbers:
            if window.add_to(total, each):
                yield None
        yield None
    at = None if number is None else float(number * place.windows[0].width_s)
    yield _row(question, place.group, at, total) if total.outcomes else None


def _windows(book: StatsBook, question: Question) -> Iterator[tuple[Mapping[Dimension, str], Window]]:
    if question.reads_keys:
        for key_id, hours in book.keys.items():
            yield {"key": key_id}, hours
        return
    for key, series in book.items():
        if key.purpose == question.purpose:
            window = next(window for window in series.windows if window.width_s == question.width_s)
            yield _names(book, key, series), window


def _names(book: StatsBook, key: SeriesKey, series: Series) -> Mapping[Dimension, str]:
    name = book.names.of(key.subject, series)
    return {
        "endpoint": name.endpoint_id,
        "model": series.model_id,
        "provider": name.provider_name,
        "stream": str(key.stream).lower(),
        "class": key.request_class,
    }


def _row(question: Question, group: Group, at: float | None, bucket: Bucket) -> Row:
    row: Row = dict(zip(question.group_by, group, strict=True))
    if at is not None:
        row["start"] = at
    row |= {name: figure(bucket) for name, figure in COUNTS.items()}
    if question.reads_keys:
        row["uptime"] = None  # of attempts: statuses do not tell whose fault it was
    for metric, (name, scale, is_descending) in METRICS.items():
        row[metric] = _percentiles(bucket, name, question.percentiles, scale, is_descending)
    return row


def _percentiles(
    bucket: Bucket, name: str, asked: Sequence[float], scale: float, is_descending: bool
) -> dict[str, Any]:
    """`n` always; a percentile is null under five samples. Of throughput p90 is "at least this fast"."""
    sketch = bucket.sketches.get(name)
    out: dict[str, Any] = {"n": 0 if sketch is None else sketch.count}
    for percentile in asked:
        q = 1 - percentile / 100 if is_descending else percentile / 100
        value = sketch.quantile(q) if sketch is not None and sketch.count >= MIN_SAMPLES else None
        out[percentile_name(percentile)] = None if value is None else round(value * scale, 3)
    return out


def percentile_name(percentile: float) -> str:
    """Name it as in the answer: p50, p99.9."""
    return f"p{percentile:.10g}"


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 6) if whole else None


# Neither good nor bad: no room here, the caller left, this server stopped, or another attempt was faster.
_NOBODYS = (
    FailureClass.OWN_LIMIT.value,
    FailureClass.CLIENT_LEFT.value,
    FailureClass.STOPPED.value,
    FailureClass.LOST_RACE.value,
)
_NO_ERRORS = (OK, *_NOBODYS, "499")


def _num_errors(bucket: Bucket) -> int:
    return bucket.outcomes.total() - sum(bucket.outcomes[name] for name in _NO_ERRORS)


COUNTS: Mapping[str, Callable[[Bucket], Any]] = {
    "requests": lambda b: b.outcomes.total(),
    "errors": _num_errors,
    "outcomes": lambda b: dict(sorted(b.outcomes.items())),
    "error_rate": lambda b: _share(_num_errors(b), b.outcomes[OK] + _num_errors(b)),
    "uptime": lambda b: uptime_of(b.outcomes),
    "prompt_tokens": lambda b: b.prompt_tokens,
    "completion_tokens": lambda b: b.completion_tokens,
    "cached_tokens": lambda b: b.cached_tokens,
    "reasoning_tokens": lambda b: b.reasoning_tokens,
    "cache_hit_share": lambda b: _share(b.cached_tokens, b.prompt_tokens),
    "cost": lambda b: round(b.cost, 12),
}
