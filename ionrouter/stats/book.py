"""Per endpoint and streaming mode: how fast, how often, how reliably. What clients read, not what routes.

Routing looks at ionrouter.balancing.health, which forgets faster. Times are wall-clock seconds. Bounded:
48 hours of minutes for at most `max_endpoints` endpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ionrouter.errors import FailureClass
from ionrouter.schema.events import AttemptRecord, RequestRecord
from ionrouter.stats.sketch import Sketch
from ionrouter.stats.window import Bucket, Window

MIN_SAMPLES = 5  # fewer say nothing: null
WINDOWS_S = {"5m": 300.0, "30m": 1800.0, "1d": 86400.0}
OK = "ok"
# What an endpoint is not blamed for: its limits, bad requests, refused content, callers who left.
_COUNTED_FAILURES = frozenset({FailureClass.TRANSIENT.value, FailureClass.DOMAIN.value})


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


@dataclass(frozen=True, slots=True)
class EndpointSummary:
    """What GET .../endpoints publishes of one endpoint, both streaming modes together."""

    endpoint_id: str
    last_5m: WindowSummary
    last_30m: WindowSummary
    last_1d: WindowSummary


@dataclass(slots=True)
class StatsBook:
    """All endpoints' windows. `record` takes microseconds and never fails on an unknown endpoint."""

    max_endpoints: int = 4096  # patterns let clients invent names: the longest idle goes first
    _windows: dict[tuple[str, bool], Window] = field(default_factory=dict)  # (endpoint id, stream)

    def observe(self, record: RequestRecord) -> None:
        """Take in every attempt of a request that ended."""
        for attempt in record.attempts:
            self.record(attempt)

    def record(self, attempt: AttemptRecord) -> None:
        """Take in one attempt, under the minute in which it ended."""
        bucket = self._window(attempt.endpoint_id, attempt.stream).at(attempt.started_at + attempt.duration_s)
        if bucket is None:
            return
        bucket.add(OK if attempt.failure is None else attempt.failure.value, _samples(attempt))
        if attempt.usage is not None:
            bucket.prompt_tokens += attempt.usage.prompt_tokens
            bucket.completion_tokens += attempt.usage.completion_tokens
        bucket.cost += attempt.cost.total

    def window(
        self, endpoint_id: str, seconds: float, now: float, *, stream: bool | None = None
    ) -> WindowSummary:
        """Summarise the last `seconds` of one endpoint; `stream` None merges both modes."""
        total = Bucket()
        for mode in (True, False) if stream is None else (stream,):
            window = self._windows.get((endpoint_id, mode))
            if window is not None:
                total.merge(window.since(now - seconds, now))
        return summarise(total)

    def endpoint_summary(self, endpoint_id: str, now: float) -> EndpointSummary:
        """Summarise one endpoint over the three published windows."""
        last = {name: self.window(endpoint_id, seconds, now) for name, seconds in WINDOWS_S.items()}
        return EndpointSummary(endpoint_id, last["5m"], last["30m"], last["1d"])

    def endpoint_ids(self) -> tuple[str, ...]:
        """List the endpoints that have statistics."""
        return tuple(dict.fromkeys(endpoint_id for endpoint_id, _ in self._windows))

    def _window(self, endpoint_id: str, stream: bool) -> Window:
        key = (endpoint_id, stream)
        window = self._windows.pop(key, None) or Window()
        self._windows[key] = window  # last in order: most recently used
        if len(self._windows) > 2 * self.max_endpoints:
            del self._windows[next(iter(self._windows))]
        return window


def summarise(bucket: Bucket) -> WindowSummary:
    """Turn counts and sketches into what is published."""
    return WindowSummary(
        num_attempts=bucket.outcomes.total(),
        outcomes=dict(bucket.outcomes),
        uptime=_uptime(bucket.outcomes),
        ttft_ms=_percentiles(bucket.sketches.get("ttft_s"), scale=1000.0),
        throughput=_percentiles(bucket.sketches.get("throughput"), is_descending=True),
        duration_ms=_percentiles(bucket.sketches.get("duration_s"), scale=1000.0),
        tpot_ms=_percentiles(bucket.sketches.get("tpot_s"), scale=1000.0),
        prompt_tokens=bucket.prompt_tokens,
        completion_tokens=bucket.completion_tokens,
        cost=bucket.cost,
        resolution_s=60,
    )


def _samples(attempt: AttemptRecord) -> dict[str, float]:
    """Measure an attempt. A client that left leaves its first token's time, a failure nothing."""
    samples: dict[str, float] = {}
    if attempt.ttft_s is not None and attempt.failure in (None, FailureClass.CLIENT_LEFT):
        samples["ttft_s"] = attempt.ttft_s
    if attempt.failure is not None or attempt.duration_s <= 0:
        return samples
    samples["duration_s"] = attempt.duration_s
    num_out = attempt.usage.completion_tokens if attempt.usage else 0
    if num_out > 0:
        samples["throughput"] = num_out / attempt.duration_s
    if num_out > 1 and attempt.ttft_s is not None and attempt.duration_s > attempt.ttft_s:
        samples["tpot_s"] = (attempt.duration_s - attempt.ttft_s) / (num_out - 1)
    return samples


def _uptime(outcomes: Mapping[str, int]) -> float | None:
    num_ok = outcomes.get(OK, 0)
    num_failed = sum(n for outcome, n in outcomes.items() if outcome in _COUNTED_FAILURES)
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
