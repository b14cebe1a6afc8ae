"""The first pick: drawn among the best, sometimes an old acquaintance, or plainly the first. Pure."""

from __future__ import annotations

import random

from msgspec import Struct
from msgspec.structs import replace

from ionrouter.balancing.plan import Candidate
from ionrouter.balancing.strategies import Strategy, View
from ionrouter.routing.table import Endpoint, RoutingSettings
from ionrouter.routing.tags import matches
from ionrouter.schema.request import InferenceRequest


class Ranked(Struct, frozen=True):
    """A candidate with what it is sorted by: the rank decides before the strategy's key."""

    view: View
    rank: tuple[int, ...]
    key: float

    @property
    def order(self) -> tuple[tuple[int, ...], float, float]:
        return self.rank, self.key, self.view.candidate.score.total


def place(order: tuple[str, ...], endpoint: Endpoint) -> int:
    """Index of the first name in `order` that means this endpoint; after all of them if none does."""
    if not order:
        return 0
    return next((i for i, name in enumerate(order) if matches(name, endpoint)), len(order))


def drawn(
    ranked: list[Ranked],
    strategy: Strategy,
    request: InferenceRequest,
    settings: RoutingSettings,
    rng: random.Random,
) -> tuple[list[Candidate], str]:
    """Draw the first pick from those that share the best rank; everybody else keeps the order."""
    if len(ranked) == 1:
        return _alone(ranked[0], strategy, request, rng)
    pool = [r.view for r in ranked if r.rank == ranked[0].rank]
    is_named = place(request.preferences.order, pool[0].candidate.endpoint) < len(request.preferences.order)
    if strategy.weights is None or is_named:
        rest = [replace(r.view.candidate, share=0.0) for r in ranked]
        why = "provider.order" if is_named else "strict order"
        return [replace(rest[0], share=1.0), *rest[1:]], why
    weights = strategy.weights(pool, settings.spread)
    if not any(weights):
        weights = [1.0] * len(pool)  # all weights 0: nobody is preferred
    explored = _explored(_hopeful(pool)) if strategy.explores else None
    explore = settings.explore if explored is not None else 0.0
    total = sum(weights)
    shares = {
        view.candidate.endpoint.id: (1 - explore) * weight / total + explore * (view is explored)
        for view, weight in zip(pool, weights, strict=True)
    }
    is_exploring = rng.random() < explore
    first = explored if is_exploring and explored else rng.choices(pool, weights)[0]
    candidates = [r.view.candidate for r in ranked]
    shared = [replace(c, share=share) if (share := shares.get(c.endpoint.id)) else c for c in candidates]
    winner = next(c for c in shared if c.endpoint.id == first.candidate.endpoint.id)
    rest = [c for c in shared if c is not winner]
    why = "exploring: oldest sample" if is_exploring else f"drawn from {sum(w > 0 for w in weights)}"
    return [replace(winner, is_exploring=True) if is_exploring else winner, *rest], why


def _alone(
    only: Ranked, strategy: Strategy, request: InferenceRequest, rng: random.Random
) -> tuple[list[Candidate], str]:
    """What `drawn` says of one, without weighing it against nobody."""
    candidate, order = only.view.candidate, request.preferences.order
    if order and place(order, candidate.endpoint) < len(order):
        why = "provider.order"
    elif strategy.weights is None:
        why = "strict order"
    else:
        why = "drawn from 1"
        rng.random(), rng.random()  # as where there is a choice: a seeded run does not depend on who is left
    return [replace(candidate, share=1.0)], why


def _hopeful(pool: list[View]) -> list[View]:
    """Those that could turn out best: an endpoint whose price alone is over the best score never can."""
    best = min(view.candidate.score.total for view in pool)
    return [view for view in pool if view.candidate.outlook.price <= best]


def _explored(pool: list[View]) -> View | None:
    """The endpoint with the oldest sample, unless an exploring request is under way there."""
    if len(pool) < 2:
        return None

    def sampled_at(view: View) -> float:
        return view.health.speeds[view.stream].sampled_at

    oldest = min(pool, key=sampled_at)
    return None if oldest.health.is_exploring() else oldest
