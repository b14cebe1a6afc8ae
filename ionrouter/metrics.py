"""Prometheus metrics in a registry of their own. Observes finished requests and reads gauges at scrape time.

Labels are ids of endpoints and models and fixed words. A catch-all pattern lets clients invent ids, so only
the first MAX_ENDPOINTS get series of their own; the rest share one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ionrouter.engine_metrics import EngineCollector, EngineLoads
from ionrouter.routing_metrics import RoutingCollector, RoutingGauges
from ionrouter.schema.events import AttemptRecord, RequestRecord

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Seconds: local models answer in tens of milliseconds, long answers take minutes.
FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 30, 60)
QUEUE_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30)
TOTAL_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)

QUEUE = "Before work on an attempt began: the local engine's queue, or the wait for a connection."
IN_FLIGHT = "Requests being served."
COST = "US dollars by endpoint, all attempts."
SPANS = "Spans of traces: exported, failed (the collector did not take them), dropped (too many waited)."
MAX_ENDPOINTS = 1000
OTHER = "(other)"

Family = TypeVar("Family", Counter, Gauge, Histogram)


class Metrics:
    """Everything /metrics shows. An observer of the router."""

    def __init__(self, engine_loads: EngineLoads = dict, routing: RoutingGauges = tuple) -> None:
        # They would double the series, and nobody reads them.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._sums = _Sums()
        self.registry.register(self._sums)  # before all others, and so asked first
        self._endpoints: set[str] = set()
        self._requests = self._counter(
            "ionrouter_requests",
            "Requests by kind, serving model and endpoint (empty: none served), streaming, and status.",
            ["kind", "model", "endpoint", "stream", "status"],
        )
        self._attempts = self._counter(
            "ionrouter_attempts",
            "Tries at endpoints; failure is empty for a success, else the failure class; role is main, "
            "hedge, shadow or probe.",
            ["endpoint", "failure", "stage", "role"],
        )
        self._first_token = self._histogram(
            "ionrouter_first_token_seconds",
            "From the start of an attempt to its first usable event.",
            *(["endpoint"], FIRST_TOKEN_BUCKETS),
        )
        self._queue = self._histogram("ionrouter_queue_seconds", QUEUE, ["endpoint"], QUEUE_BUCKETS)
        self._total = self._histogram(
            "ionrouter_request_seconds",
            "From a request's arrival to its end.",
            *(["endpoint", "stream"], TOTAL_BUCKETS),
        )
        self._token = self._histogram(
            "ionrouter_token_seconds",
            "Between tokens after the first, the mean of a streamed answer.",
            *(["endpoint"], TOKEN_BUCKETS),
        )
        self._tokens = self._counter(
            "ionrouter_tokens",
            "Tokens by endpoint and direction; cached and reasoning are parts of prompt and completion.",
            ["endpoint", "direction"],
        )
        self._cost = self._counter("ionrouter_cost_usd", COST, ["endpoint"])
        self._unpriced = self._counter(
            "ionrouter_unpriced_requests",
            "Requests that used tokens at an endpoint whose price nobody said: their cost is reported as 0.",
            ["endpoint"],
        )
        self._refusals = self._counter(
            "ionrouter_refusals",
            "Requests refused before they reached the router: malformed, unauthorized, no such route.",
            ["status"],
        )
        self._store_faults = self._counter(
            "ionrouter_store_faults",
            "State database: write_failed (tried again), checkpoint_failed, refused (queue full), dropped.",
            ["what"],
        )
        self._spans = self._counter("ionrouter_spans", SPANS, ["outcome"])
        self.in_flight = Gauge("ionrouter_requests_in_flight", IN_FLIGHT, registry=self.registry)
        self.registry.register(EngineCollector(engine_loads))
        self.registry.register(RoutingCollector(routing))

    def _histogram(self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float]) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str, labels: Sequence[str]) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def observe(self, record: RequestRecord) -> None:
        """Count one finished request and its attempts."""
        endpoint, stream = self._label(record.served_endpoint or ""), str(record.stream).lower()
        model = OTHER if endpoint == OTHER else record.served_model or ""
        self._sums.add(_with(self._requests, record.kind, model, endpoint, stream, str(record.status)), 1)
        _with(self._total, endpoint, stream).observe(record.duration_s)
        for attempt in record.attempts:
            self.record(attempt)

    def refuse(self, status: int) -> None:
        """Count one request that never reached the router."""
        self._refusals.labels(str(status)).inc()

    def store_fault(self, what: str, count: int) -> None:
        """Count what the state database could not take."""
        self._store_faults.labels(what).inc(count)

    def spans(self, outcome: str, count: int) -> None:
        """Count what became of spans; called from any thread."""
        self._spans.labels(outcome).inc(count)

    def record(self, attempt: AttemptRecord) -> None:
        """Count one attempt; shadows and probes come here alone and count in no other series."""
        endpoint = self._label(attempt.endpoint_id)
        failure = attempt.failure.value if attempt.failure else ""
        stage = "after_commit" if attempt.after_commit else "before_commit"
        self._sums.add(_with(self._attempts, endpoint, failure, stage if failure else "", attempt.role), 1)
        if attempt.role in ("shadow", "probe"):
            return
        self._sums.add(_with(self._cost, endpoint), max(attempt.cost.total, 0.0))
        if attempt.ttft_s is not None:
            _with(self._first_token, endpoint).observe(attempt.ttft_s)
        if attempt.queue_s is not None:
            _with(self._queue, endpoint).observe(attempt.queue_s)
        if attempt.usage is None:
            return
        num_after_first = attempt.usage.completion_tokens - 1
        if attempt.ttft_s is not None and attempt.failure is None and num_after_first > 0:
            token_s = (attempt.duration_s - attempt.ttft_s) / num_after_first
            _with(self._token, endpoint).observe(max(token_s, 0.0))
        if attempt.is_unpriced:
            self._unpriced.labels(endpoint).inc()
        for direction, count in (
            ("prompt", attempt.usage.prompt_tokens),
            ("completion", attempt.usage.completion_tokens),
            ("cached", attempt.usage.cached_tokens),
            ("reasoning", attempt.usage.reasoning_tokens),
        ):
            self._sums.add(_with(self._tokens, endpoint, direction), count)

    def _label(self, endpoint_id: str) -> str:
        if endpoint_id not in self._endpoints:
            if len(self._endpoints) >= MAX_ENDPOINTS:
                return OTHER
            self._endpoints.add(endpoint_id)
        return endpoint_id

    def render(self) -> bytes:
        """The text exposition format, version 0.0.4."""
        return generate_latest(self.registry)


class _Sums(Collector):
    """What was counted since the metrics were last read: a counter's own adding is a lock and three calls."""

    def __init__(self) -> None:
        self._since: dict[Counter, float] = {}

    def add(self, counter: Counter, amount: float) -> None:
        self._since[counter] = self._since.get(counter, 0.0) + amount

    def describe(self) -> Iterable[Metric]:
        return ()  # it has nothing of its own to show

    def collect(self) -> Iterable[Metric]:
        """Hand on what was counted."""
        since, self._since = self._since, {}
        for counter, amount in since.items():
            counter.inc(amount)
        return ()


@lru_cache(maxsize=4096)
def _with(metric: Family, *labels: str) -> Family:
    """The series of these labels; finding it anew costs 2 us, and a request needs ten."""
    return metric.labels(*labels)
