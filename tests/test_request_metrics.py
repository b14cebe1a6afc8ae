"""Counts kept as plain numbers are those that the client library's own counters and histograms would show."""

from __future__ import annotations

import random

from prometheus_client import CollectorRegistry, Counter, Histogram

from ionrouter.errors import FailureClass
from ionrouter.metrics import text_in_pieces
from ionrouter.request_metrics import (
    FIRST_TOKEN_BUCKETS,
    QUEUE_BUCKETS,
    TOKEN_BUCKETS,
    TOTAL_BUCKETS,
    RequestCollector,
)
from ionrouter.schema.events import AttemptRecord, RequestRecord
from ionrouter.schema.usage import Cost, Usage

ROLES = ("main", "main", "main", "hedge", "shadow", "probe")


class Reference:
    """The same with the library's own metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        names = ["kind", "model", "endpoint", "stream", "status"]
        self.requests = Counter("ionrouter_requests", "", names, registry=self.registry)
        names = ["endpoint", "failure", "stage", "role"]
        self.attempts = Counter("ionrouter_attempts", "", names, registry=self.registry)
        self.first_token = self._histogram("first_token_seconds", ["endpoint"], FIRST_TOKEN_BUCKETS)
        self.queue = self._histogram("queue_seconds", ["endpoint"], QUEUE_BUCKETS)
        self.total = self._histogram("request_seconds", ["endpoint", "stream"], TOTAL_BUCKETS)
        self.token = self._histogram("token_seconds", ["endpoint"], TOKEN_BUCKETS)
        names = ["endpoint", "direction"]
        self.tokens = Counter("ionrouter_tokens", "", names, registry=self.registry)
        self.cost = Counter("ionrouter_cost_usd", "", ["endpoint"], registry=self.registry)
        self.unpriced = Counter("ionrouter_unpriced_requests", "", ["endpoint"], registry=self.registry)

    def _histogram(self, name: str, labels: list[str], buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"ionrouter_{name}", "", labels, buckets=buckets, registry=self.registry)

    def count(self, record: RequestRecord) -> None:
        endpoint, stream = record.served_endpoint or "", str(record.stream).lower()
        labels = (record.kind, record.served_model or "", endpoint, stream, str(record.status))
        self.requests.labels(*labels).inc()
        self.total.labels(endpoint, stream).observe(record.duration_s)
        for attempt in record.attempts:
            self.count_attempt(attempt)

    def count_attempt(self, attempt: AttemptRecord) -> None:
        failure = attempt.failure.value if attempt.failure else ""
        stage = "after_commit" if attempt.after_commit else "before_commit"
        name = attempt.endpoint_id
        self.attempts.labels(name, failure, stage if failure else "", attempt.role).inc()
        if attempt.role in ("shadow", "probe"):
            return
        self.cost.labels(name).inc(max(attempt.cost.total, 0.0))
        if attempt.ttft_s is not None:
            self.first_token.labels(name).observe(attempt.ttft_s)
        if attempt.queue_s is not None:
            self.queue.labels(name).observe(attempt.queue_s)
        if (usage := attempt.usage) is None:
            return
        if attempt.ttft_s is not None and attempt.failure is None and usage.completion_tokens > 1:
            token_s = (attempt.duration_s - attempt.ttft_s) / (usage.completion_tokens - 1)
            self.token.labels(name).observe(max(token_s, 0.0))
        if attempt.is_unpriced:
            self.unpriced.labels(name).inc()
        self.tokens.labels(name, "prompt").inc(usage.prompt_tokens)
        self.tokens.labels(name, "completion").inc(usage.completion_tokens)
        self.tokens.labels(name, "cached").inc(usage.cached_tokens)
        self.tokens.labels(name, "reasoning").inc(usage.reasoning_tokens)


def _attempt(rng: random.Random) -> AttemptRecord:
    failure = rng.choice((None, None, FailureClass.CAPACITY, FailureClass.TRANSIENT))
    usage = Usage(rng.randrange(99), rng.randrange(4), rng.randrange(9), 0, rng.randrange(3))
    return AttemptRecord(
        endpoint_id=rng.choice(("a/m", "b/m", "c/m")),
        model_id="m",
        provider_name="A",
        started_at=0.0,
        stream=rng.random() < 0.5,
        duration_s=rng.choice((*TOTAL_BUCKETS, rng.expovariate(2))),
        ttft_s=rng.choice((None, *FIRST_TOKEN_BUCKETS, 61.5, 0.0)),
        failure=failure,
        after_commit=failure is not None and rng.random() < 0.5,
        usage=rng.choice((None, usage, usage)),
        cost=Cost(rng.random(), -rng.random()),
        is_unpriced=rng.random() < 0.2,
        queue_s=rng.choice((None, *QUEUE_BUCKETS, 0.0)),
        role=rng.choice(ROLES),  # type: ignore[arg-type]
    )


def _record(rng: random.Random) -> RequestRecord:
    served = rng.choice(("a/m", "b/m", None))
    return RequestRecord(
        id="gen-1",
        kind=rng.choice(("chat", "embeddings")),
        requested_model="made up",
        stream=rng.random() < 0.5,
        started_at=0.0,
        duration_s=rng.choice((*TOTAL_BUCKETS, 0.0, 601.0, rng.expovariate(2))),
        status=rng.choice((200, 499, 502)),
        attempts=tuple(_attempt(rng) for _ in range(rng.randrange(3))),
        served_model=None if served is None else "m",
        served_endpoint=served,
    )


def _lines(registry: CollectorRegistry) -> list[str]:
    lines = b"".join(text_in_pieces(registry)).decode().splitlines()
    return sorted(line for line in lines if not line.startswith("# HELP") and "_created" not in line)


def test_they_show_what_the_library_would() -> None:
    rng, reference, collector = random.Random(5), Reference(), RequestCollector()
    registry = CollectorRegistry()
    registry.register(collector)
    for _ in range(3):  # a look in between changes nothing
        for _ in range(150):
            record = _record(rng)
            reference.count(record)
            collector.count(record)
        assert _lines(registry) == _lines(reference.registry)
    assert len(_lines(registry)) > 150


def test_before_they_are_shown_what_is_still_to_be_told_is_told() -> None:
    waiting = [_record(random.Random(5))]
    registry = CollectorRegistry()
    collector = RequestCollector(lambda: collector.count(waiting.pop()) if waiting else None)
    registry.register(collector)
    assert b"ionrouter_requests_total{" in b"".join(text_in_pieces(registry))
