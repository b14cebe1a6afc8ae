"""What the router decides, as Prometheus families read at scrape time: breakers, retries, hedges, shadows.

Knows names and numbers; whoever makes the collector says where they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ionrouter.metric_parts import batches


@dataclass(frozen=True, slots=True)
class Reading:
    """One number of one series: `name` is a key of FAMILIES, `labels` in its order."""

    name: str
    labels: tuple[str, ...]
    value: float


RoutingGauges = Callable[[], Iterable[Reading]]

# name -> (help, labels, whether it only grows)
FAMILIES: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "ionrouter_breaker_state": ("Circuit breaker: 0 closed, 1 half-open, 2 open.", ("endpoint",), False),
    "ionrouter_connection_retries": (
        "Second connections to the same endpoint: made, or refused by its retry budget.",
        ("endpoint", "outcome"),
        True,
    ),
    "ionrouter_hedges": (
        "Second endpoints asked beside a slow one: started, or refused by the model's budget.",
        ("model", "outcome"),
        True,
    ),
    "ionrouter_shadows": (
        "Copies of requests: started, or skipped (too many, filtered, breaker open).",
        ("endpoint", "outcome"),
        True,
    ),
}


class RoutingCollector(Collector):
    """Reads when scraped, so that no value can be stale. A family comes in parts, one after the other."""

    def __init__(self, readings: RoutingGauges) -> None:
        self._readings = readings

    def describe(self) -> Iterable[Metric]:
        return [_family(name, ()) for name in FAMILIES]

    def collect(self) -> Iterator[Metric]:
        found: dict[str, list[Reading]] = {name: [] for name in FAMILIES}
        for reading in self._readings():
            found[reading.name].append(reading)
        for name, readings in found.items():
            for some in batches(readings):
                yield _family(name, some)


def _family(name: str, readings: Iterable[Reading]) -> Metric:
    text, labels, grows = FAMILIES[name]
    family = (CounterMetricFamily if grows else GaugeMetricFamily)(name, text, labels=labels)
    for reading in readings:
        family.add_metric(list(reading.labels), reading.value)
    return family
