"""The goals of routing as measurements: each plays seeded worlds and returns a figure. Asserts nothing."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ionrouter.router import Router
from ionrouter.routing.table import Price, RoutingSettings
from ionrouter.simulation.clairvoyant import clairvoyant
from ionrouter.simulation.report import mean_cost, refused, switches
from ionrouter.simulation.run import Played, play
from ionrouter.simulation.scenario import Ask, Conduct, Happening, Load, Scenario, Upstream
from ionrouter.simulation.world import World

SEEDS = range(20)
GOOD = Conduct(ttft_s=0.3, throughput=150.0)
FAULTS = {
    "slow": replace(GOOD, slower=10.0),
    "failing": replace(GOOD, fails=1.0),
    "silent": replace(GOOD, hangs=1.0),
}
LENGTHS = {"prompt_tokens": 2000.0, "completion_tokens": 500.0}


def price(factor: float) -> Price:
    """A usual price, times a factor."""
    return Price(0.5e-6 * factor, 1.5e-6 * factor)


def mix(num: int, seed: int, requests: int) -> Scenario:
    """Endpoints with prices and latencies over a decade, failures up to 30%, hangs up to 5% of 60 s."""
    rng = random.Random(f"mix {num} {seed}")
    upstreams = []
    for i in range(num):
        conduct = Conduct(
            ttft_s=0.3 * 10 ** rng.uniform(0, 1),
            throughput=200 / 10 ** rng.uniform(0, 1),
            fails=rng.uniform(0, 0.3),
            hangs=rng.uniform(0, 0.05),
            hang_s=60.0,
        )
        upstreams.append(Upstream(f"e{i}", price(10 ** rng.uniform(0, 1)), conduct))
    return Scenario(tuple(upstreams), Load(rate=5, requests=requests, **LENGTHS))


def regrets(num: int, requests: int, strategies: Sequence[str]) -> dict[str, float]:
    """Cost over all seeds, as a multiple of the clairvoyant's."""
    best, costs = 0.0, dict.fromkeys(strategies, 0.0)
    for seed in SEEDS:
        world = World(mix(num, seed, requests), seed)
        best += statistics.fmean(clairvoyant(world))
        for strategy in strategies:
            costs[strategy] += mean_cost(world, play(world, strategy))
    return {strategy: cost / best for strategy, cost in costs.items()}


def asks(*stretches: tuple[float, float], at: float = 0.0) -> tuple[Ask, ...]:
    """Requests at even distances: so many a second for so many seconds, one stretch after the other."""
    found = []
    for rate, length_s in stretches:
        num = round(rate * length_s)
        found += [Ask(at + i / rate, 1000, 200) for i in range(num)]
        at += length_s
    return tuple(found)


def share(played: Sequence[Played], name: str, since: float, until: float) -> float:
    """Share of first picks among the requests of a stretch."""
    picks = [one.first_pick for one in played if since <= one.ask.at < until]
    return picks.count(name) / len(picks)


BEST_OF_THREE = (
    Upstream("best", price(1.0), GOOD),
    Upstream("second", price(2.0), GOOD),
    Upstream("third", price(3.0), GOOD),
)
FAULT_AT, GRACE_S, FAULT_S, RECOVERY_S = 10.0, 2.0, 4.0, 60.0
WHERE_TIME_MATTERS = 0.001  # USD per second; the second is 0.0008 USD dearer: two late seconds are worth more


@dataclass(frozen=True)
class Left:
    """What became of the best endpoint's first picks."""

    avoided: float  # share that went elsewhere, from 2 s into the fault
    back: float  # of its share before the fault, in the last ten seconds


def fault(
    kind: str,
    seed: int,
    *,
    rate: float = 50.0,
    explore: float = 0.01,
    fault_s: float = FAULT_S,
    grace_s: float = GRACE_S,
    recovery_s: float = RECOVERY_S,
    value_of_time: float = WHERE_TIME_MATTERS,
) -> Left:
    """Play the best of three through a fault and a minute after it."""
    over = FAULT_AT + fault_s
    played = faulty(kind, seed, rate, explore, fault_s, recovery_s, value_of_time)
    usual = share(played, "best", FAULT_AT / 2, FAULT_AT)
    avoided = 1 - share(played, "best", FAULT_AT + grace_s, over)
    return Left(avoided, share(played, "best", over + recovery_s - 10.0, over + recovery_s) / usual)


def faulty(
    kind: str,
    seed: int,
    rate: float = 50.0,
    explore: float = 0.01,
    fault_s: float = FAULT_S,
    recovery_s: float = RECOVERY_S,
    value_of_time: float = WHERE_TIME_MATTERS,
) -> list[Played]:
    """All requests of it."""
    over = FAULT_AT + fault_s
    scenario = Scenario(
        BEST_OF_THREE,
        trace=asks((rate, over + recovery_s)),
        happenings=(Happening(FAULT_AT, "best", FAULTS[kind]), Happening(over, "best", GOOD)),
        settings=RoutingSettings(explore=explore, value_of_time=value_of_time),
    )
    return play(World(scenario, seed), "expected-cost")


def flaky(seed: int) -> float:
    """Cost as a multiple of foresight's where the cheaper of two is silent for 30 s, a quarter of the time.

    Too rarely for its breaker, and seldom three together; its good answers are as quick as the other's.
    """
    hanging = Upstream("hanging", price(1.0), replace(GOOD, hangs=0.25, hang_s=30.0))
    scenario = Scenario(
        (hanging, Upstream("sound", price(2.0), GOOD)),
        Load(rate=2, requests=800, **LENGTHS),
        settings=RoutingSettings(value_of_time=WHERE_TIME_MATTERS),
    )
    world = World(scenario, seed)
    return mean_cost(world, play(world, "expected-cost")) / statistics.fmean(clairvoyant(world))


def newcomer(seed: int) -> float:
    """Share of a burst of 100 requests at once that a cheaper endpoint gets that nobody has measured."""
    warm, burst = asks((10.0, 10.0)), tuple(Ask(20.0, 1000, 200) for _ in range(100))
    new = Upstream("new", price(0.5), GOOD)
    refusing = replace(new, conduct=replace(GOOD, ttft_s=1.0))
    scenario = Scenario((*BEST_OF_THREE, refusing), trace=(*warm, *burst))

    def hide(router: Router) -> None:
        """Nobody measures the new one before the burst: it is not in the table yet."""
        table = router.table
        model = next(iter(table.models.values()))
        old = replace(model, endpoints=model.endpoints[:3])
        router.table = replace(table, models={model.id: old})
        _later(router, table)

    played = play(World(scenario, seed), "expected-cost", meddle=hide)
    return share(played, "new", 20.0, 21.0)


def _later(router: Router, table: object) -> None:
    import asyncio

    asyncio.get_running_loop().call_later(15.0, lambda: setattr(router, "table", table))


def herd(seed: int, *, spread: float = 1.25) -> float:
    """The largest share that one of four nearly equal, measured endpoints gets of 100 requests at once."""
    ends = tuple(Upstream(f"e{i}", price(1 + 0.02 * i), GOOD, expected_ttft_s=0.3) for i in range(4))
    trace = (*asks((10.0, 10.0)), *(Ask(20.0, 1000, 200) for _ in range(100)))
    scenario = Scenario(ends, trace=trace, settings=RoutingSettings(spread=spread))
    played = play(World(scenario, seed), "expected-cost")
    return max(share(played, end.name, 20.0, 21.0) for end in ends)


def limited(seed: int) -> float:
    """429s per request where the cheapest endpoint takes 30% of the load."""
    low = Upstream("limited", price(1.0), replace(GOOD, limit=3.0, burst=5.0))
    scenario = Scenario((low, Upstream("open", price(2.0), GOOD)), Load(rate=10, requests=600, **LENGTHS))
    return refused(play(World(scenario, seed), "expected-cost"))


@dataclass(frozen=True)
class AfterBurst:
    """What became of an endpoint that takes 30 requests a second, after 100 at once."""

    refused: float  # 429s per request, the burst's own included
    share: float  # of the 25 requests a second that come after it, at the endpoint


def after_burst(seed: int, rate_before: float) -> AfterBurst:
    """A burst into the cheaper one's limit, out of so many requests a second."""
    low = Upstream("limited", price(1.0), replace(GOOD, limit=30.0, burst=30.0))
    at_once = tuple(Ask(20.0, 1000, 200) for _ in range(100))
    trace = (*asks((rate_before, 20.0)), *at_once, *asks((25.0, 60.0), at=21.0))
    played = play(
        World(Scenario((low, Upstream("open", price(2.0), GOOD)), trace=trace), seed), "expected-cost"
    )
    return AfterBurst(refused(played), share(played, "limited", 21.0, 81.0))


def told_to_wait(seed: int) -> float:
    """429s per request where the cheapest endpoint takes one request a minute, and says so."""
    low = Upstream("limited", price(1.0), replace(GOOD, limit=1 / 60, burst=1.0, retry_after_s=60.0))
    scenario = Scenario((low, Upstream("open", price(2.0), GOOD)), Load(rate=2, requests=240, **LENGTHS))
    return refused(play(World(scenario, seed), "expected-cost"))


def sessions(seed: int) -> float:
    """Switches in a session of 30 turns between three equal endpoints that cache."""
    cost = Price(1e-6, 3e-6, cache_read=0.1e-6)
    ends = tuple(Upstream(f"e{i}", cost, GOOD, caches=True) for i in range(3))
    load = Load(rate=5, requests=300, prompt_tokens=400, completion_tokens=200, turns=30, pause_s=5.0)
    return switches(play(World(Scenario(ends, load), seed), "expected-cost"))


def over_seeds(check: Callable[[int], float]) -> list[float]:
    """A figure for every seed."""
    return [check(seed) for seed in SEEDS]
