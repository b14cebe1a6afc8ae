"""The figures of played worlds: cost, latency, failures, waste, switches and regret. Prints nothing."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ionrouter.balancing.strategies import STRATEGIES
from ionrouter.errors import FailureClass
from ionrouter.simulation.clairvoyant import clairvoyant
from ionrouter.simulation.run import Played, play
from ionrouter.simulation.scenario import Scenario
from ionrouter.simulation.world import World


@dataclass(frozen=True, slots=True)
class Figures:
    """One strategy over all seeds. USD and seconds for one request; shares are of all requests."""

    strategy: str
    requests: int
    dollars: float  # mean, of all attempts
    cost: float  # mean of dollars + value_of_time * seconds, failures included
    regret: float  # cost / the clairvoyant's - 1
    ttft_p50_s: float
    ttft_p95_s: float
    whole_p50_s: float
    whole_p95_s: float
    whole_p99_s: float
    failed: float  # nobody answered, or the answer broke
    wasted: float  # attempts that brought nothing, per request
    refused: float  # of these: 429
    switches: float  # per session: turns served elsewhere than the turn before
    shares: dict[str, float]  # of first picks, by endpoint


@dataclass(frozen=True, slots=True)
class Comparison:
    """All strategies in the same worlds."""

    scenario: str
    seeds: int
    clairvoyant: float  # mean cost of a request
    rows: tuple[Figures, ...]


def compared(scenario: Scenario, seeds: Sequence[int], strategies: Sequence[str] = ()) -> Comparison:
    """Play every strategy (all, unless named) in the world of every seed."""
    worlds = [World(scenario, seed) for seed in seeds]
    best = statistics.fmean(cost for world in worlds for cost in clairvoyant(world))
    rows = []
    for strategy in strategies or tuple(STRATEGIES):
        played = [(world, play(world, strategy)) for world in worlds]
        rows.append(_figures(strategy, played, best))
    return Comparison(scenario.name, len(seeds), best, tuple(rows))


def cost_of_request(played: Played, scenario: Scenario) -> float:
    """USD, with waiting; one without a whole answer waited `failure_s` more, and pays too."""
    record = played.record
    waited_s = record.duration_s + (0.0 if record.status == 200 else scenario.failure_s)
    return record.cost.total + scenario.settings.value_of_time * waited_s


def mean_cost(world: World, played: Sequence[Played]) -> float:
    """Mean over the requests of one world."""
    return statistics.fmean(cost_of_request(one, world.scenario) for one in played)


def percentile(values: Sequence[float], q: float) -> float:
    """Nearest rank; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(int(q * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def switches(played: Sequence[Played]) -> float:
    """Mean number of times that a session's turn was served elsewhere than the turn before."""
    last: dict[str, str] = {}
    num_switches = 0
    for one in played:
        session, served = one.ask.session, one.record.served_endpoint
        if session is None or served is None:
            continue
        num_switches += last.get(session, served) != served
        last[session] = served
    return num_switches / len(last) if last else 0.0


def refused(played: Sequence[Played]) -> float:
    """Attempts that ended in a 429, per request."""
    failures = [attempt.failure for one in played for attempt in one.record.attempts]
    return failures.count(FailureClass.CAPACITY) / len(played)


def _figures(strategy: str, worlds: Sequence[tuple[World, list[Played]]], best: float) -> Figures:
    everything = [one for _, played in worlds for one in played]
    records = [one.record for one in everything]
    answered = [record for record in records if record.status == 200]
    ttfts = [record.ttft_s for record in answered if record.ttft_s is not None]
    wholes = [record.duration_s for record in answered]
    cost = statistics.fmean(mean_cost(world, played) for world, played in worlds)
    num = len(records)
    picks = Counter(one.first_pick for one in everything)
    return Figures(
        strategy=strategy,
        requests=num,
        dollars=sum(record.cost.total for record in records) / num,
        cost=cost,
        regret=cost / best - 1,
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p95_s=percentile(ttfts, 0.95),
        whole_p50_s=percentile(wholes, 0.5),
        whole_p95_s=percentile(wholes, 0.95),
        whole_p99_s=percentile(wholes, 0.99),
        failed=1 - len(answered) / num,
        wasted=sum(not attempt.ok for record in records for attempt in record.attempts) / num,
        refused=refused(everything),
        switches=statistics.fmean(switches(played) for _, played in worlds),
        shares={name: count / num for name, count in sorted(picks.items()) if name},
    )
