"""What requests and attempts come to, as Prometheus families made when scraped.

Plain numbers until then: one request adds to a dozen series, each of which would take a lock.

Labels are ids of endpoints and models and fixed words. A catch-all pattern lets clients invent ids, so of
those that are not listed only the first MAX_ENDPOINTS get series of their own; the rest share one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ionrouter.errors import FailureClass
from ionrouter.metric_parts import batches
from ionrouter.schema.events import AttemptRecord, AttemptRole, RequestRecord
from ionrouter.schema.request import Kind

# Seconds: local models answer in tens of milliseconds, long answers take minutes.
FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 30, 60)
QUEUE_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30)
TOTAL_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)
DIRECTIONS = ("prompt", "completion", "cached", "reasoning")

MAX_ENDPOINTS = 1000
NUM_KEPT = MAX_ENDPOINTS // 2  # where those that routes.yaml listed once and does not any more are too many
OTHER = "(other)"

Outcome = tuple[FailureClass | None, bool, AttemptRole]  # failure, whether after the commit
Ending = tuple[Kind, str, str, bool, int]  # kind, model, endpoint, streaming, status


class RequestCollector(Collector):
    """Counts requests and attempts. `before_reading` tells it of those that it has not heard of yet.

    It is read a few endpoints at a time: a family comes in parts, one after the other.
    """

    def __init__(self, before_reading: Callable[[], None] = lambda: None) -> None:
        self._before_reading = before_reading
        self._requests: Counter[Ending] = Counter()
        self._endpoints: dict[str, EndpointCounts] = {}
        self._others = EndpointCounts(OTHER)
        self._listed: Collection[str] = frozenset()
        self._num_invented = 0

    def list_endpoints(self, endpoint_ids: Iterable[str]) -> None:
        """Say which endpoints routes.yaml lists: they have series of their own, whatever clients invent."""
        self._listed = frozenset({"", *endpoint_ids})  # "" of requests that nobody served
        unlisted = [name for name in self._endpoints if name not in self._listed]
        if len(unlisted) > MAX_ENDPOINTS:  # many were listed once; then there is room again for others
            self._forget(frozenset(unlisted[:-NUM_KEPT]))
            unlisted = unlisted[-NUM_KEPT:]
        self._num_invented = len(unlisted)

    def _forget(self, names: Collection[str]) -> None:
        """Drop the series of the endpoints that came first: a server that lives long has many of them."""
        self._endpoints = {name: counts for name, counts in self._endpoints.items() if name not in names}
        kept = {ending: count for ending, count in self._requests.items() if ending[2] not in names}
        self._requests = Counter(kept)

    def count(self, record: RequestRecord) -> None:
        """Count one finished request and its attempts."""
        endpoint = self._of(record.served_endpoint or "")
        model = OTHER if endpoint is self._others else record.served_model or ""
        self._requests[record.kind, model, endpoint.id, record.stream, record.status] += 1
        (endpoint.streamed if record.stream else endpoint.whole).add(record.duration_s)
        for attempt in record.attempts:
            self.count_attempt(attempt)

    def count_attempt(self, attempt: AttemptRecord) -> None:
        """Count one attempt; shadows and probes count in no other series."""
        self._of(attempt.endpoint_id).add(attempt)

    def _of(self, endpoint_id: str) -> EndpointCounts:
        counts = self._endpoints.get(endpoint_id)
        if counts is None:
            if endpoint_id not in self._listed:
                if self._num_invented >= MAX_ENDPOINTS:
                    return self._others
                self._num_invented += 1
            counts = self._endpoints[endpoint_id] = EndpointCounts(endpoint_id)
        return counts

    def describe(self) -> Iterable[Metric]:
        return self._parts((), ())

    def collect(self) -> Iterable[Metric]:
        self._before_reading()
        # Copies: requests may end between two parts.
        return self._parts(tuple(self._requests.items()), (*self._endpoints.values(), self._others))

    @staticmethod
    def _parts(
        requests: Sequence[tuple[Ending, int]], endpoints: Sequence[EndpointCounts]
    ) -> Iterator[Metric]:
        for some_requests in batches(requests):
            yield _requests(some_requests)
        for make in _FAMILIES:
            for some_endpoints in batches(endpoints):
                yield make(some_endpoints)


class Distribution:
    """A histogram's numbers. `bounds` rise; one more bucket takes what is beyond the last."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count it in the bucket of the lowest bound that is not below it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Make a series of it, unless it is empty."""
        if not any(self._counts):
            return
        buckets, total = list[tuple[str, float]](), 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append((floatToGoString(bound), total))  # type: ignore[no-untyped-call]
        family.add_metric(labels, buckets, self._sum)


class EndpointCounts:
    """What attempts at one endpoint come to, and requests that it served. None: no series yet."""

    __slots__ = (
        "attempts",
        "cost",
        "first_token",
        "id",
        "queue",
        "streamed",
        "token",
        "tokens",
        "unpriced",
        "whole",
    )

    def __init__(self, endpoint_id: str) -> None:
        self.id = endpoint_id
        self.attempts: Counter[Outcome] = Counter()
        self.first_token, self.queue = Distribution(FIRST_TOKEN_BUCKETS), Distribution(QUEUE_BUCKETS)
        self.token = Distribution(TOKEN_BUCKETS)
        self.streamed, self.whole = Distribution(TOTAL_BUCKETS), Distribution(TOTAL_BUCKETS)
        self.tokens: list[int] | None = None  # in the order of DIRECTIONS
        self.cost: float | None = None
        self.unpriced = 0

    def add(self, attempt: AttemptRecord) -> None:
        """Count one attempt."""
        failure = attempt.failure
        self.attempts[failure, failure is not None and attempt.after_commit, attempt.role] += 1
        if attempt.role in ("shadow", "probe"):
            return
        self.cost = (self.cost or 0.0) + max(attempt.cost.total, 0.0)
        ttft_s, usage = attempt.ttft_s, attempt.usage
        if ttft_s is not None:
            self.first_token.add(ttft_s)
        if attempt.queue_s is not None:
            self.queue.add(attempt.queue_s)
        if usage is None:
            return
        num_after_first = usage.completion_tokens - 1
        if ttft_s is not None and failure is None and num_after_first > 0:
            self.token.add(max((attempt.duration_s - ttft_s) / num_after_first, 0.0))
        self.unpriced += attempt.is_unpriced
        tokens = self.tokens
        if tokens is None:
            tokens = self.tokens = [0] * len(DIRECTIONS)
        tokens[0] += usage.prompt_tokens
        tokens[1] += usage.completion_tokens
        tokens[2] += usage.cached_tokens
        tokens[3] += usage.reasoning_tokens


def _requests(endings: Iterable[tuple[Ending, int]]) -> Metric:
    family = CounterMetricFamily(
        "ionrouter_requests",
        "Requests by kind, serving model and endpoint (empty: none served), streaming, and status.",
        labels=["kind", "model", "endpoint", "stream", "status"],
    )
    for (kind, model, endpoint, stream, status), count in endings:
        family.add_metric([kind, model, endpoint, str(stream).lower(), str(status)], count)
    return family


def _attempts(endpoints: Sequence[EndpointCounts]) -> Metric:
    family = CounterMetricFamily(
        "ionrouter_attempts",
        "Tries at endpoints; failure is empty for a success, else the failure class; role is main, "
        "hedge, shadow or probe.",
        labels=["endpoint", "failure", "stage", "role"],
    )
    for endpoint in endpoints:
        for (failure, is_after_commit, role), count in endpoint.attempts.items():
            stage = "after_commit" if is_after_commit else "before_commit"
            named = ("", "") if failure is None else (failure.value, stage)
            family.add_metric([endpoint.id, *named, role], count)
    return family


def _first_tokens(endpoints: Sequence[EndpointCounts]) -> Metric:
    return _histogram(
        "ionrouter_first_token_seconds",
        "From the start of an attempt to its first usable event.",
        ((each.id, each.first_token) for each in endpoints),
    )


def _queues(endpoints: Sequence[EndpointCounts]) -> Metric:
    return _histogram(
        "ionrouter_queue_seconds",
        "Before work on an attempt began: the local engine's queue, or the wait for a connection.",
        ((each.id, each.queue) for each in endpoints),
    )


def _token_times(endpoints: Sequence[EndpointCounts]) -> Metric:
    return _histogram(
        "ionrouter_token_seconds",
        "Between tokens after the first, the mean of a streamed answer.",
        ((each.id, each.token) for each in endpoints),
    )


def _durations(endpoints: Sequence[EndpointCounts]) -> Metric:
    family = HistogramMetricFamily(
        "ionrouter_request_seconds",
        "From a request's arrival to its end.",
        labels=["endpoint", "stream"],
    )
    for endpoint in endpoints:
        endpoint.whole.add_to(family, [endpoint.id, "false"])
        endpoint.streamed.add_to(family, [endpoint.id, "true"])
    return family


def _histogram(name: str, text: str, found: Iterable[tuple[str, Distribution]]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=["endpoint"])
    for endpoint_id, distribution in found:
        distribution.add_to(family, [endpoint_id])
    return family


def _tokens(endpoints: Sequence[EndpointCounts]) -> Metric:
    family = CounterMetricFamily(
        "ionrouter_tokens",
        "Tokens by endpoint and direction; cached and reasoning are parts of prompt and completion.",
        labels=["endpoint", "direction"],
    )
    for endpoint in endpoints:
        for direction, count in zip(DIRECTIONS, endpoint.tokens or (), strict=False):
            family.add_metric([endpoint.id, direction], count)
    return family


def _cost(endpoints: Sequence[EndpointCounts]) -> Metric:
    family = CounterMetricFamily(
        "ionrouter_cost_usd", "US dollars by endpoint, all attempts.", labels=["endpoint"]
    )
    for endpoint in endpoints:
        if endpoint.cost is not None:
            family.add_metric([endpoint.id], endpoint.cost)
    return family


def _unpriced(endpoints: Sequence[EndpointCounts]) -> Metric:
    family = CounterMetricFamily(
        "ionrouter_unpriced_requests",
        "Requests that used tokens at an endpoint whose price nobody said: their cost is reported as 0.",
        labels=["endpoint"],
    )
    for endpoint in endpoints:
        if endpoint.unpriced:
            family.add_metric([endpoint.id], endpoint.unpriced)
    return family


_FAMILIES: tuple[Callable[[Sequence[EndpointCounts]], Metric], ...] = (
    *(_attempts, _first_tokens, _queues, _durations, _token_times),
    *(_tokens, _cost, _unpriced),
)
