"""The choice of somebody who knows the future: the measure of every strategy. Never routes anything.

For each request in order of arrival: the smallest cost, dollars + value_of_time * seconds to the whole
answer, among the endpoints that would answer it at its arrival. It knows the dice (which request would fail,
hang or break where, and every time), keeps to rate limits with its own requests, and gets the prompt
caches that its own choices warmed. It never waits, and does not trade a request's cost for a later one's.
"""

from __future__ import annotations

from ionrouter.simulation.scenario import Upstream
from ionrouter.simulation.world import Bucket, World, dollars


def clairvoyant(world: World) -> list[float]:
    """Cost in USD of every request; one that nobody would answer counts as `failure_s`."""
    buckets = {upstream.name: Bucket() for upstream in world.scenario.upstreams}
    warm: set[tuple[str, str]] = set()
    costs = []
    for number, ask in enumerate(world.asks):
        offers: list[tuple[float, Upstream]] = []
        for upstream in world.scenario.upstreams:
            outcome = world.outcome(number, upstream, ask.at)
            if outcome.fate == "ok":
                is_warm = upstream.caches and (upstream.name, ask.session or "") in warm
                waited = world.scenario.settings.value_of_time * outcome.whole_s
                offers.append((dollars(upstream, ask, is_warm) + waited, upstream))
        offers.sort(key=lambda offer: offer[0])
        for cost, upstream in offers:
            if buckets[upstream.name].admits(world.conduct(upstream, ask.at), ask.at):
                warm.add((upstream.name, ask.session or ""))
                costs.append(cost)
                break
        else:
            costs.append(world.scenario.settings.value_of_time * world.scenario.failure_s)
    return costs
