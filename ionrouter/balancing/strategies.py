"""How candidates are ordered within a tier, and how the first pick is drawn. A table of small functions.

A strategy has a key (ascending) and, unless it is strict, draw weights for the candidates that share the
best rank. Fallbacks are never drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import Struct

from ionrouter.balancing.health import Health
from ionrouter.balancing.outlook import Size
from ionrouter.balancing.plan import Candidate
from ionrouter.schema.request import InferenceRequest, PercentileCutoffs
from ionrouter.stats.book import MIN_SAMPLES
from ionrouter.stats.window import Bucket


class View(Struct, frozen=True):
    """One candidate for one request at one moment: what ranks, keys and draws may look at."""

    candidate: Candidate
    health: Health
    request: InferenceRequest
    now: float
    stream: bool  # whether the endpoint would be asked to stream
    size: Size

    def recent(self) -> Bucket:
        """The endpoint's last five minutes in the mode this request would use."""
        return self.health.recent(self.now, self.stream)


Weights = Callable[[Sequence[View], float], list[float]]


@dataclass(frozen=True, slots=True)
class Strategy:
    """`weights` gets the pool in ascending order and the spread; None: strict order, no draw."""

    key: Callable[[View], float]
    weights: Weights | None = None
    explores: bool = False
    shuns_outages: bool = False  # an outage in the last 30 s goes last


def _score(view: View) -> float:
    return view.candidate.score.total


def _price(view: View) -> float:
    return view.candidate.outlook.price


def _latency(view: View) -> float:
    measured = _percentile(view.recent(), "ttft_s", 0.5)
    return view.candidate.outlook.ttft_s if measured is None else measured


def _slowness(view: View) -> float:
    measured = _percentile(view.recent(), "throughput", 0.5)
    return -(view.candidate.outlook.throughput if measured is None else measured)


def _unreliability(view: View) -> float:
    outlook = view.candidate.outlook
    return 1 - (1 - outlook.fail_before) * (1 - outlook.fail_after)


def _score_weights(pool: Sequence[View], spread: float) -> list[float]:
    """Draw by score^-2 among those within `spread` of the best; unmeasured ones take turns with the rest.

    An endpoint nobody has measured yet gets a few requests at a time, not a whole burst.
    """
    warming = [_is_warming(view) for view in pool]
    if all(warming):
        warming = [False] * len(pool)
    scores = [_score(view) for view in pool]
    most = spread * min(s for s, waits in zip(scores, warming, strict=True) if not waits)
    return [0.0 if waits or s > most else s**-2 for s, waits in zip(scores, warming, strict=True)]


def _is_warming(view: View) -> bool:
    return len(view.health.flights) >= MAX_WARMING and not view.health.is_measured(view.stream)


MAX_WARMING = 4  # requests in flight at an endpoint that has not answered any yet


def _price_weights(pool: Sequence[View], _spread: float) -> list[float]:
    """OpenRouter's documented rule: inverse square of the price; free ones share equally, first."""
    prices = [_price(view) for view in pool]
    if min(prices) <= 0:
        return [1.0 if price <= 0 else 0.0 for price in prices]
    return [(min(prices) / price) ** 2 for price in prices]


def _own_weights(pool: Sequence[View], _spread: float) -> list[float]:
    return [max(view.candidate.endpoint.weight, 0.0) for view in pool]


STRATEGIES: dict[str, Strategy] = {
    "expected-cost": Strategy(_score, _score_weights, explores=True),
    "price": Strategy(_price, _price_weights, shuns_outages=True),
    "latency": Strategy(_latency),
    "throughput": Strategy(_slowness),
    "round-robin": Strategy(lambda view: float(view.health.turn)),
    "least-busy": Strategy(lambda view: float(len(view.health.flights))),
    "weighted": Strategy(lambda view: -view.candidate.endpoint.weight, _own_weights),
}

# `provider.sort`: a strict order by one quality.
SORTS: dict[str, Strategy] = {
    "price": Strategy(_price),
    "latency": Strategy(_latency),
    "throughput": Strategy(_slowness),
    "exacto": Strategy(_unreliability),
}


# Every order by the name that plans give it.
ORDERS: dict[str, Strategy] = STRATEGIES | {f"sort:{name}": strategy for name, strategy in SORTS.items()}


def lags_behind(view: View) -> bool:
    """Ask whether the last five minutes miss the caller's preferred speed; unmeasured is not missing."""
    prefs = view.request.preferences
    wanted_s, wanted_rate = prefs.preferred_max_latency, prefs.preferred_min_throughput
    if wanted_s is None and wanted_rate is None:
        return False
    recent = view.recent()
    too_slow = any(
        value is not None and value > limit for value, limit in _measured(recent, "ttft_s", wanted_s)
    )
    return too_slow or any(
        value is not None and value < limit for value, limit in _measured(recent, "throughput", wanted_rate)
    )


def _measured(
    recent: Bucket, metric: str, cutoffs: PercentileCutoffs | None
) -> list[tuple[float | None, float]]:
    """Pair each cut-off with what was measured at its percentile. For throughput p90 is "at least"."""
    pairs = []
    for name, limit in (cutoffs.values if cutoffs else {}).items():
        q = float(name.removeprefix("p")) / 100
        pairs.append((_percentile(recent, metric, 1 - q if metric == "throughput" else q), limit))
    return pairs


def _percentile(recent: Bucket, metric: str, q: float) -> float | None:
    sketch = recent.sketches.get(metric)
    return sketch.quantile(q) if sketch is not None and sketch.count >= MIN_SAMPLES else None
