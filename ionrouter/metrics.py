"""Prometheus metrics in a registry of their own. Observes requests that ended; reads gauges when scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ionrouter.engine_metrics import EngineCollector, EngineLoads
from ionrouter.request_metrics import RequestCollector
from ionrouter.routing_metrics import RoutingCollector, RoutingGauges
from ionrouter.schema.events import AttemptRecord, RequestRecord

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

IN_FLIGHT = "Requests being served."
CACHE_BYTES = "What the answers in the response cache take."
SPANS = "Spans of traces: exported, failed (the collector did not take them), dropped (too many waited)."


class Metrics:
    """Everything /metrics shows. An observer of the router.

    Whoever tells it of requests later than they end brings it up to date in `before_reading`.
    """

    def __init__(
        self,
        engine_loads: EngineLoads = dict,
        routing: RoutingGauges = tuple,
        *,
        before_reading: Callable[[], None] = lambda: None,
    ) -> None:
        # They would double the series, and nobody reads them.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._requests = RequestCollector(before_reading)
        self.registry.register(self._requests)  # before all others, and so asked first
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
        self._cache_lookups = self._counter(
            "ionrouter_response_cache_lookups",
            "Requests that asked for the response cache, by outcome: hit, miss.",
            ["outcome"],
        )
        self.cache_bytes = Gauge("ionrouter_response_cache_bytes", CACHE_BYTES, registry=self.registry)
        self._spans = self._counter("ionrouter_spans", SPANS, ["outcome"])
        self.in_flight = Gauge("ionrouter_requests_in_flight", IN_FLIGHT, registry=self.registry)
        self.registry.register(EngineCollector(engine_loads))
        self.registry.register(RoutingCollector(routing))

    def _counter(self, name: str, text: str, labels: Sequence[str]) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def observe(self, record: RequestRecord) -> None:
        """Count one finished request and its attempts."""
        self._requests.count(record)

    def record(self, attempt: AttemptRecord) -> None:
        """Count one attempt; shadows and probes come here alone."""
        self._requests.count_attempt(attempt)

    def refuse(self, status: int) -> None:
        """Count one request that never reached the router."""
        self._refusals.labels(str(status)).inc()

    def store_fault(self, what: str, count: int) -> None:
        """Count what the state database could not take."""
        self._store_faults.labels(what).inc(count)

    def cache_lookup(self, outcome: str) -> None:
        """Count one look into the response cache."""
        self._cache_lookups.labels(outcome).inc()

    def spans(self, outcome: str, count: int) -> None:
        """Count what became of spans; called from any thread."""
        self._spans.labels(outcome).inc(count)

    def list_endpoints(self, endpoint_ids: Iterable[str]) -> None:
        """Say which endpoints routes.yaml lists: they have series of their own, whatever clients invent."""
        self._requests.list_endpoints(endpoint_ids)

    def render(self) -> bytes:
        """The text exposition format, version 0.0.4."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """The same, worked out as it is taken, a few series a step: a thousand endpoints are 2 MB.

        Requests may end between two steps; the numbers of one series are of one moment.
        """
        return text_in_pieces(self.registry)


def text_in_pieces(registry: Collector) -> Iterator[bytes]:
    """Write what a registry collects, part by part; parts of one family follow each other, under one head."""
    told = ""
    for part in registry.collect():
        text = generate_latest(_Part(part))
        yield _without_head(text) if part.name == told else text
        told = part.name


class _Part(Collector):
    """A part of a family, as something that can be written."""

    def __init__(self, part: Metric) -> None:
        self._part = part

    def collect(self) -> Iterable[Metric]:
        return (self._part,)


def _without_head(text: bytes) -> bytes:
    """Leave out the lines of help and type, which a family has once."""
    return text.split(b"\n", 2)[2]
