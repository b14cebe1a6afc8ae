"""Where a request should go now. Pure: routes, request, health, moment and rng in; a Plan out.

Nothing is claimed here: a half-open breaker's trial is claimed in dispatch.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from ionrouter.balancing.cost import score
from ionrouter.balancing.fields import contract_needs, declares, lost_parameters
from ionrouter.balancing.health import Health, HealthBook
from ionrouter.balancing.outlook import outlook_of, size_of, streams_upstream
from ionrouter.balancing.plan import Candidate, Plan
from ionrouter.balancing.screen import TEMPORARY, Exclusion, Subject, matches, screen
from ionrouter.balancing.strategies import SORTS, STRATEGIES, Strategy, View, lags_behind
from ionrouter.errors import RequestError
from ionrouter.routing.table import Endpoint, ModelRoute, RoutingSettings
from ionrouter.schema.load import EngineLoad
from ionrouter.schema.request import InferenceRequest

ESTIMATE_ERROR = 0.25  # four characters a token overstates code and tables by about this much


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything around a request at one moment."""

    book: HealthBook
    settings: RoutingSettings
    now: float
    load_of: Callable[[Endpoint], EngineLoad | None] = lambda endpoint: None


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate with what it is sorted by: the rank decides before the strategy's key."""

    view: View
    rank: tuple[int, ...]
    key: float

    @property
    def order(self) -> tuple[tuple[int, ...], float, float]:
        return self.rank, self.key, self.view.candidate.score.total


def select(
    routes: tuple[ModelRoute, ...], request: InferenceRequest, scene: Scene, rng: random.Random
) -> Plan:
    """Filter, weigh and order every endpoint of `routes` (tiers, best first) for one request.

    The prompt's length is an estimate: where nobody is left because of it, those are tried that a prompt a
    quarter shorter would fit, and the endpoint's own tokenizer decides.
    """
    plan = _selected(routes, request, scene, rng)
    if plan.candidates or all(e.filter != "context_length" for e in plan.exclusions):
        return plan
    shorter = replace(request, prompt_tokens=int(request.prompt_tokens * (1 - ESTIMATE_ERROR)))
    lenient = _selected(routes, shorter, scene, rng)
    return lenient if lenient.candidates else plan


def _selected(
    routes: tuple[ModelRoute, ...], request: InferenceRequest, scene: Scene, rng: random.Random
) -> Plan:
    name, strategy = _strategy(request, scene.settings)
    candidates: list[Candidate] = []
    exclusions: list[Exclusion] = []
    needs = contract_needs(request)
    for tier, route in enumerate(routes):
        healths = [scene.book.of(endpoint) for endpoint in route.endpoints]
        for endpoint, health in zip(route.endpoints, healths, strict=True):
            subject = Subject(endpoint, request, health, scene.load_of(endpoint), scene.now, needs)
            exclusion = screen(subject, route)
            if exclusion is None:
                candidates.append(_weighed(subject, healths, route, tier, scene))
            else:
                exclusions.append(exclusion)
    if not candidates:
        return _failed_open(routes, name, exclusions, request, scene)
    ranked = sorted((_ranked(c, strategy, request, scene, needs) for c in candidates), key=lambda r: r.order)
    ordered, reason = _drawn(ranked, strategy, request, scene, rng)
    if not request.preferences.allow_fallbacks and not request.preferences.order:
        ordered = ordered[:1]
    return Plan(routes, name, tuple(ordered), tuple(exclusions), reason)


def _strategy(request: InferenceRequest, settings: RoutingSettings) -> tuple[str, Strategy]:
    sort = request.preferences.sort
    if sort is not None:
        return f"sort:{sort}", SORTS[sort]
    name = request.overrides.strategy or settings.strategy
    if name not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise RequestError(f"unknown strategy {name!r}, known are {known}", param="ionrouter.strategy")
    return name, STRATEGIES[name]


def _weighed(
    subject: Subject, healths: list[Health], route: ModelRoute, tier: int, scene: Scene
) -> Candidate:
    """Score one endpoint; `healths` are those of all the model's endpoints."""
    endpoint, request = subject.endpoint, subject.request
    stream = streams_upstream(endpoint, request)
    outlook = outlook_of(
        endpoint,
        subject.health,
        [health for health in healths if health is not subject.health],
        size_of(request, scene.book.expected_num_out(route.id, stream, scene.now)),
        stream=stream,
        load=subject.load,
        now=scene.now,
    )
    value_of_time = _first_given(
        request.overrides.value_of_time, route.value_of_time, scene.settings.value_of_time
    )
    return Candidate(endpoint, route, tier, outlook, score(outlook, value_of_time))


def _first_given(*values: float | None) -> float:
    return next(value for value in values if value is not None)  # 0 is a value


def _ranked(
    candidate: Candidate,
    strategy: Strategy,
    request: InferenceRequest,
    scene: Scene,
    needs: frozenset[str],
) -> Ranked:
    """Rank: misses the preferred speed, tier, place in `order`, may lose parameters, had an outage."""
    prefs = request.preferences
    view = View(candidate, scene.book.of(candidate.endpoint), request, scene.now)
    is_merged = prefs.sort is not None and prefs.sort_partition == "none"
    rank = (
        int(lags_behind(view)),
        0 if is_merged else candidate.tier,
        _place(prefs.order, candidate.endpoint),
        int(not _takes_all(request, candidate.endpoint, needs)),
        int(strategy.shuns_outages and view.health.has_outage(scene.now)),
    )
    return Ranked(view, rank, strategy.key(view))


def _takes_all(request: InferenceRequest, endpoint: Endpoint, needs: frozenset[str]) -> bool:
    """Ask whether nothing would be dropped, and what changes the answer's contract is declared."""
    return all(declares(endpoint, name) for name in needs) and not lost_parameters(request, endpoint)


def _place(order: tuple[str, ...], endpoint: Endpoint) -> int:
    """Index of the first name in `order` that means this endpoint; after all of them if none does."""
    return next((i for i, name in enumerate(order) if matches(name, endpoint)), len(order))


def _drawn(
    ranked: list[Ranked], strategy: Strategy, request: InferenceRequest, scene: Scene, rng: random.Random
) -> tuple[list[Candidate], str]:
    """Draw the first pick from those that share the best rank; everybody else keeps the order."""
    pool = [r.view for r in ranked if r.rank == ranked[0].rank]
    is_named = _place(request.preferences.order, pool[0].candidate.endpoint) < len(request.preferences.order)
    if strategy.weights is None or is_named:
        rest = [replace(r.view.candidate, share=0.0) for r in ranked]
        why = "provider.order" if is_named else "strict order"
        return [replace(rest[0], share=1.0), *rest[1:]], why
    weights = strategy.weights(pool, scene.settings.spread)
    if not any(weights):
        weights = [1.0] * len(pool)  # all weights 0: nobody is preferred
    explored = _explored(pool, request) if strategy.explores else None
    explore = scene.settings.explore if explored is not None else 0.0
    shares = {
        view.candidate.endpoint.id: (1 - explore) * weight / sum(weights) + explore * (view is explored)
        for view, weight in zip(pool, weights, strict=True)
    }
    is_exploring = rng.random() < explore
    first = explored if is_exploring and explored else rng.choices(pool, weights)[0]
    shared = [replace(r.view.candidate, share=shares.get(r.view.candidate.endpoint.id, 0.0)) for r in ranked]
    winner = next(c for c in shared if c.endpoint.id == first.candidate.endpoint.id)
    rest = [c for c in shared if c is not winner]
    why = "exploring: oldest sample" if is_exploring else f"drawn from {sum(w > 0 for w in weights)}"
    return [replace(winner, is_exploring=is_exploring), *rest], why


def _explored(pool: list[View], request: InferenceRequest) -> View | None:
    """The endpoint with the oldest sample, unless an exploring request is under way there."""
    if len(pool) < 2:
        return None

    def sampled_at(view: View) -> float:
        stream = streams_upstream(view.candidate.endpoint, request)
        return view.health.speeds[stream].sampled_at

    oldest = min(pool, key=sampled_at)
    return None if oldest.health.is_exploring() else oldest


def _failed_open(
    routes: tuple[ModelRoute, ...],
    strategy: str,
    exclusions: list[Exclusion],
    request: InferenceRequest,
    scene: Scene,
) -> Plan:
    """When only open breakers are in the way, try the best; never one whose provider refuses our account."""
    broken = [e for e in exclusions if e.filter == "breaker_open" and not e.is_domain]
    if not broken:
        return Plan(routes, strategy, (), tuple(exclusions))
    tiers = {route.id: tier for tier, route in enumerate(routes)}
    candidates = []
    for e in broken:
        subject = Subject(
            e.endpoint, request, scene.book.of(e.endpoint), scene.load_of(e.endpoint), scene.now
        )
        healths = [scene.book.of(peer) for peer in e.route.endpoints]
        candidates.append(_weighed(subject, healths, e.route, tiers[e.route.id], scene))
    best = min(candidates, key=lambda c: (c.tier, c.score.total))
    forced = replace(best, share=1.0, is_forced=True)
    kept = tuple(e for e in exclusions if e.endpoint is not best.endpoint)
    return Plan(routes, strategy, (forced,), kept, "every breaker is open: the best one is tried")


def retry_at(exclusions: tuple[Exclusion, ...]) -> float | None:
    """The soonest moment at which time alone makes an excluded endpoint usable again; None if never."""
    moments = [e.until for e in exclusions if e.filter in TEMPORARY and e.until is not None]
    return min(moments, default=None)
