"""Per endpoint, streaming mode and class: how fast, how often, how reliably. What clients read, not what
routes.

Routing looks at ionrouter.balancing.health, which forgets faster. Times are wall-clock seconds. Bounded:
minutes for 48 hours, hours for 31 days, days for 400 days, for at most `max_series` series; hours of the
busiest 200 keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from ionrouter.errors import DOWN, FailureClass
from ionrouter.schema.events import AttemptRecord, RequestRecord
from ionrouter.stats.classes import CLASSES, RequestClass, class_of
from ionrouter.stats.keys import KeyBook
from ionrouter.stats.resolution import GRAINS, MINUTE, width_for
from ionrouter.stats.sketch import Sketch
from ionrouter.stats.window import OK, Bucket, Window

FORMER = "(former)"
MIN_SAMPLES = 5  # fewer say nothing: null
# Attempts that belong together: for callers (hedges, too), copies, health checks. They never mix.
Purpose = Literal["main", "shadow", "probe"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """`n` samples. For latencies p90 is "nine in ten were faster", for throughput "at least this fast"."""

    p50: float
    p75: float
    p90: float
    p99: float
    n: int


@dataclass(frozen=True, slots=True)
class WindowSummary:
    """One stretch of time. `uptime` in percent; None wherever fewer than five samples speak."""

    num_attempts: int
    outcomes: Mapping[str, int]  # "ok" and failure classes
    uptime: float | None
    ttft_ms: Percentiles | None
    throughput: Percentiles | None  # tokens/s, waiting included
    duration_ms: Percentiles | None
    tpot_ms: Percentiles | None  # time per output token after the first
    prompt_tokens: int
    completion_tokens: int
    cost: float
    resolution_s: int


@dataclass(slots=True)
class Series:
    """One endpoint in one mode, at three resolutions.

    What ends within one minute is counted once and goes to the three together, before anybody looks.
    """

    endpoint_id: str = ""
    model_id: str = ""
    provider_name: str = ""
    _windows: tuple[Window, ...] = field(
        default_factory=lambda: tuple(Window.of(grain) for grain in GRAINS.values())
    )
    _minute: int = 0  # of what is in `_latest`
    _latest: Bucket = field(default_factory=Bucket)

    @property
    def windows(self) -> tuple[Window, ...]:
        """Minutes, hours and days."""
        self._settle()
        return self._windows

    def record(self, attempt: AttemptRecord) -> None:
        """Take in one attempt, under the minute, hour and day in which it ended."""
        outcome = OK if attempt.failure is None else attempt.failure.value
        self.endpoint_id = attempt.endpoint_id
        self.model_id, self.provider_name = attempt.model_id, attempt.provider_name
        bucket = self._at(attempt.started_at + attempt.duration_s)
        bucket.add(outcome, _samples(attempt))
        bucket.spend(attempt.usage, attempt.cost)

    def measure(self, ended_at: float, samples: Mapping[str, float]) -> None:
        """Add measurements that belong to an attempt already counted."""
        self._at(ended_at).measure(samples)

    def _at(self, moment: float) -> Bucket:
        minute = int(moment // MINUTE.width_s)
        if minute != self._minute:
            self._settle()
            self._minute = minute
        return self._latest

    def _settle(self) -> None:
        if not self._latest:
            return
        for window in self._windows:
            window.at(float(self._minute * MINUTE.width_s)).merge(self._latest)
        self._latest = Bucket()

    def window_for(self, seconds: float) -> Window:
        """Choose the resolution for a stretch that ends now."""
        width_s = width_for(seconds)
        return next(window for window in self.windows if window.width_s == width_s)


class SeriesKey(NamedTuple):
    """Whose series: attempts of these never mix, and merge in any combination."""

    subject: str  # one upstream under one model; the id of an endpoint that has no other
    stream: bool  # asked of the upstream
    purpose: Purpose
    request_class: RequestClass


@dataclass(frozen=True, slots=True)
class Name:
    """What an endpoint is called, and its provider."""

    subject: str
    endpoint_id: str
    provider_name: str


class Names:
    """What the endpoints that are listed are called: ids are given anew when the file changes."""

    def __init__(self, listed: Iterable[Name]) -> None:
        self._by_subject = {name.subject: name for name in listed}
        self._by_id = {name.endpoint_id: name.subject for name in self._by_subject.values()}

    def of(self, subject: str, series: Series) -> Name:
        """What a series is told under: as it was called last, unless another endpoint is called that now."""
        listed = self._by_subject.get(subject)
        if listed is not None:
            return listed
        endpoint_id = series.endpoint_id or subject
        is_anothers = self._by_id.get(endpoint_id, subject) != subject
        return Name(subject, f"{endpoint_id} {FORMER}" if is_anothers else endpoint_id, series.provider_name)

    def subject(self, endpoint_id: str) -> str:
        """Whose statistics are those that were kept under an id alone."""
        return self._by_id.get(endpoint_id, endpoint_id)


def _purpose(attempt: AttemptRecord) -> Purpose:
    return attempt.role if attempt.role in ("shadow", "probe") else "main"


@dataclass(slots=True)
class StatsBook:
    """All endpoints' series. `record` takes microseconds and never fails on an unknown endpoint.

    Whoever tells it of requests later than they end brings it up to date in `before_reading`: every way to
    read goes through `keys` or `_told`.
    """

    max_series: int = 8192  # patterns let clients invent names: the longest idle goes first
    before_reading: Callable[[], None] = lambda: None
    names: Names = field(default_factory=lambda: Names(()))  # as routes.yaml has them now
    _keys: KeyBook = field(default_factory=KeyBook)
    _series: dict[SeriesKey, Series] = field(default_factory=dict)

    @property
    def keys(self) -> KeyBook:
        """The callers' keys, to read."""
        self.before_reading()
        return self._keys

    @property
    def max_keys(self) -> int:
        """How many callers' keys are held."""
        return self._keys.max_keys

    @property
    def _told(self) -> dict[SeriesKey, Series]:
        """All series, to read."""
        self.before_reading()
        return self._series

    def observe(self, record: RequestRecord) -> None:
        """Take in a request that ended, and every attempt of it."""
        series = None
        for attempt in record.attempts:
            series = self._record(attempt)
        if series is not None and record.served_endpoint and record.ttft_s is not None:
            last = record.attempts[-1]  # the one that served
            series.measure(last.started_at + last.duration_s, {"ttft_client_s": record.ttft_s})
        self._keys.observe(record)

    def record(self, attempt: AttemptRecord) -> None:
        """Take in one attempt."""
        self._record(attempt)

    def _record(self, attempt: AttemptRecord) -> Series:
        prompt_tokens = attempt.usage.prompt_tokens if attempt.usage else attempt.prompt_tokens
        subject = attempt.subject or attempt.endpoint_id
        key = SeriesKey(subject, attempt.stream, _purpose(attempt), class_of(prompt_tokens))
        series = self._series.pop(key, None) or Series()
        self._series[key] = series  # last in order: most recently used
        series.record(attempt)
        if len(self._series) > self.max_series:
            del self._series[next(iter(self._series))]
        return series

    def items(self) -> tuple[tuple[SeriesKey, Series], ...]:
        """Every series with its key."""
        return tuple(self._told.items())

    def series(self, key: SeriesKey) -> Series | None:
        """Find a series, or begin it, for what is read back after a start; None beyond the limit."""
        told = self._told
        if key not in told and len(told) >= self.max_series:
            return None
        return told.setdefault(key, Series())

    def window(
        self,
        subject: str,
        seconds: float,
        now: float,
        *,
        stream: bool | None = None,
        purpose: Purpose = "main",
    ) -> WindowSummary:
        """Summarise the last `seconds` of one subject; `stream` None merges both modes."""
        total = Bucket()
        for _ in self.merging(total, subject, seconds, now, stream=stream, purpose=purpose):
            pass
        return summarise(total, width_for(seconds))

    def merging(
        self,
        total: Bucket,
        subject: str,
        seconds: float,
        now: float,
        *,
        stream: bool | None = None,
        purpose: Purpose = "main",
        metrics: Collection[str] | None = None,
    ) -> Iterator[None]:
        """Merge the last `seconds` of one subject into `total`, a bucket a step; of sketches `metrics`."""
        told = self._told
        for mode in (True, False) if stream is None else (stream,):
            for request_class in CLASSES:
                series = told.get(SeriesKey(subject, mode, purpose, request_class))
                if series is None:
                    continue
                window = series.window_for(seconds)
                for number in window.numbers(now - seconds, now):
                    if window.add_to(total, number, metrics):
                        yield

    def subjects(self) -> tuple[str, ...]:
        """List what has statistics, of whatever purpose."""
        return tuple(dict.fromkeys(key.subject for key in self._told))


def summarise(bucket: Bucket, resolution_s: int) -> WindowSummary:
    """Turn counts and sketches into what is published."""
    return WindowSummary(
        num_attempts=bucket.outcomes.total(),
        outcomes=dict(bucket.outcomes),
        uptime=uptime_of(bucket.outcomes),
        ttft_ms=_percentiles(bucket.sketches.get("ttft_s"), scale=1000.0),
        throughput=_percentiles(bucket.sketches.get("throughput"), is_descending=True),
        duration_ms=_percentiles(bucket.sketches.get("duration_s"), scale=1000.0),
        tpot_ms=_percentiles(bucket.sketches.get("tpot_s"), scale=1000.0),
        prompt_tokens=bucket.prompt_tokens,
        completion_tokens=bucket.completion_tokens,
        cost=bucket.cost,
        resolution_s=resolution_s,
    )


def _samples(attempt: AttemptRecord) -> dict[str, float]:
    """Measure an attempt. Of one that its client or a stop cut: queue, first token. Of a failure: nothing."""
    samples: dict[str, float] = {}
    if attempt.failure in (None, FailureClass.CLIENT_LEFT, FailureClass.STOPPED):
        if attempt.ttft_s is not None:
            samples["ttft_s"] = attempt.ttft_s
        if attempt.queue_s is not None:
            samples["queue_s"] = attempt.queue_s
    if attempt.failure is not None or attempt.duration_s <= 0:
        return samples
    samples["duration_s"] = attempt.duration_s
    num_out = attempt.usage.completion_tokens if attempt.usage else 0
    if num_out > 0:
        samples["throughput"] = num_out / attempt.duration_s
    if num_out > 1 and attempt.ttft_s is not None and attempt.duration_s > attempt.ttft_s:
        samples["tpot_s"] = (attempt.duration_s - attempt.ttft_s) / (num_out - 1)
    if attempt.max_gap_s is not None:
        samples["max_gap_s"] = attempt.max_gap_s
    return samples


def uptime_of(outcomes: Mapping[str, int]) -> float | None:
    num_ok = outcomes.get(OK, 0)
    num_failed = sum(n for outcome, n in outcomes.items() if outcome in DOWN)
    total = num_ok + num_failed
    return 100.0 * num_ok / total if total >= MIN_SAMPLES else None


def _percentiles(
    sketch: Sketch | None, *, scale: float = 1.0, is_descending: bool = False
) -> Percentiles | None:
    if sketch is None or sketch.count < MIN_SAMPLES:
        return None

    def at(q: float) -> float:
        value = sketch.quantile(1 - q if is_descending else q)
        assert value is not None  # it holds samples
        return value * scale

    return Percentiles(at(0.5), at(0.75), at(0.9), at(0.99), sketch.count)
