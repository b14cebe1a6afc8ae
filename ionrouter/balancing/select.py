"""Where a request should go now. Pure: routes, request, health, moment and rng in; a Plan out.

Nothing is claimed here: a half-open breaker's trial is claimed in dispatch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from ionrouter.balancing.affinity import is_worth_staying
from ionrouter.balancing.assignment import Assignments, assigned
from ionrouter.balancing.assumed_price import as_weighed
from ionrouter.balancing.cost import score
from ionrouter.balancing.draw import Ranked, drawn, place
from ionrouter.balancing.fields import contract_needs, declares, lost_parameters
from ionrouter.balancing.health import Health, HealthBook
from ionrouter.balancing.outlook import Size, outlook_of, size_of, streams_upstream
from ionrouter.balancing.plan import Candidate, Choice, Plan
from ionrouter.balancing.precision import stepping_down_last
from ionrouter.balancing.screen import TEMPORARY, Exclusion, Subject, asked_tier, screen
from ionrouter.balancing.strategies import ORDERS, STRATEGIES, View, lags_behind
from ionrouter.errors import RequestError
from ionrouter.routing.table import Endpoint, ModelRoute, RoutingSettings
from ionrouter.schema.load import EngineLoad
from ionrouter.schema.request import InferenceRequest, SortKey

_VARIANT_SORTS: dict[str, SortKey] = {"nitro": "throughput", "floor": "price", "exacto": "exacto"}
_TIER_SORTS: dict[str, SortKey] = {"priority": "throughput", "flex": "price"}
TIER_RANKS = 4  # how much of a rank no session overrules: speed asked for, tier, order, arm
ESTIMATE_ERROR = 0.25  # four characters a token overstates code and tables by about this much


class Scene(Struct, frozen=True):
    """Everything around a request at one moment."""

    book: HealthBook
    settings: RoutingSettings
    now: float
    load_of: Callable[[Endpoint], EngineLoad | None] = lambda endpoint: None
    sticky: str | None = None  # identity of the endpoint that the session should stay with
    is_pinned: bool = False  # the request carries signed thoughts that only `sticky`'s provider can read
    takes_less: bool = False  # as in Subject


def select(
    routes: tuple[ModelRoute, ...], request: InferenceRequest, scene: Scene, rng: random.Random
) -> Plan:
    """Filter, weigh and order every endpoint of `routes` (tiers, best first) for one request.

    The prompt's length is an estimate: where nobody is left because of it, those are tried that a prompt a
    quarter shorter would fit, and the endpoint's own tokenizer decides. So are engines inside that have room
    for the prompt: they give the answer what is left.
    """
    plan = _selected(routes, request, scene, rng)
    if plan.candidates or all(e.filter != "context_length" for e in plan.exclusions):
        return plan
    longest = request.prompt_tokens if request.context_tokens is None else request.context_tokens
    shorter = replace(request, context_tokens=int(longest * (1 - ESTIMATE_ERROR)))
    lenient = _selected(routes, shorter, replace(scene, takes_less=True), rng)
    return lenient if lenient.candidates else plan


def _selected(
    routes: tuple[ModelRoute, ...], request: InferenceRequest, scene: Scene, rng: random.Random
) -> Plan:
    choices = _choices(routes, request, scene.settings)
    views: list[View] = []
    exclusions: list[Exclusion] = []
    needs = contract_needs(request)
    for tier, route in _tiers(routes):
        healths = [scene.book.of(endpoint) for endpoint in route.endpoints]
        scale = _Scale(route, tier, healths, request, scene)
        for endpoint, health in zip(route.endpoints, healths, strict=True):
            load = scene.load_of(endpoint)
            subject = Subject(endpoint, request, health, load, scene.now, needs, route, scene.takes_less)
            exclusion = screen(subject, route)
            if exclusion is None:
                views.append(scale.weighed(subject))
            else:
                exclusions.append(exclusion)
    if not views:
        return _failed_open(routes, choices, exclusions, request, scene)
    arms = assigned(routes, request, rng)
    ranked = _ranked(views, choices, needs, arms)
    first = ORDERS[choices[ranked[0].view.candidate.route.id].strategy]
    staying = None if scene.sticky is None else _pinned(ranked, scene) or _stayed(ranked, request, scene)
    ordered, reason = staying or drawn(ranked, first, request, scene.settings, rng)
    if len(ordered) > 1 and not _sets_order(request, choices[routes[0].id]):
        ordered = stepping_down_last(ordered, {r.view.candidate.endpoint.id: r.rank[:-1] for r in ranked})
    if not request.preferences.allow_fallbacks and not request.preferences.order:
        ordered = ordered[:1]
    assignments = arms.of_pick(ordered[0].route)
    if assignments:
        is_away = arms.misses(ordered[0].endpoint, ordered[0].route) > 0
        reason = "; ".join([reason, *(f"{a}{', not now' if is_away else ''}" for a in assignments)])
    strategy = choices[ordered[0].route.id].strategy
    return Plan(routes, strategy, tuple(ordered), tuple(exclusions), reason, assignments, choices)


def _sets_order(request: InferenceRequest, choice: Choice) -> bool:
    """Ask whether the caller said in which order, or which precisions will do."""
    prefs = request.preferences
    return bool(prefs.order or prefs.quantizations) or choice.strategy.startswith("sort:")


def _tiers(routes: tuple[ModelRoute, ...]) -> Iterator[tuple[int, ModelRoute]]:
    """Number the routes; those of one group share a tier."""
    tier, previous = -1, None
    for route in routes:
        if route.group is None or previous is None or previous.group != route.group:
            tier += 1
        previous = route
        yield tier, route


def _choice(route: ModelRoute, request: InferenceRequest, settings: RoutingSettings) -> Choice:
    """The caller's sort, else what a suffix or the service tier means, else a strategy.

    Of strategies the request's goes before the model's, and that before the file's.
    """
    if request.preferences.sort is not None:
        return Choice(f"sort:{request.preferences.sort}", "provider.sort")
    is_plain = request.service_tier is None and not route.variants
    if not is_plain and (implied := _implied_sort(route, request)) is not None:
        return implied
    if (name := request.overrides.strategy) is not None:
        if name not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise RequestError(f"unknown strategy {name!r}, known are {known}", param="ionrouter.strategy")
        return Choice(name, "ionrouter.strategy")
    if route.strategy is not None:
        return Choice(route.strategy, f"models.{route.id}.strategy")
    return Choice(settings.strategy, "routing.strategy")


def _choices(
    routes: tuple[ModelRoute, ...], request: InferenceRequest, settings: RoutingSettings
) -> dict[str, Choice]:
    """Each model's strategy; a group follows its first model, for keys of two strategies do not compare."""
    if len(routes) == 1:
        return {routes[0].id: _choice(routes[0], request, settings)}
    leaders: dict[str, Choice] = {}
    for route in routes:
        name = route.group or route.id
        if name not in leaders:
            leaders[name] = _choice(route, request, settings)
    return {route.id: leaders[route.group or route.id] for route in routes}


def _implied_sort(route: ModelRoute, request: InferenceRequest) -> Choice | None:
    for variant in reversed(route.variants):
        if variant in _VARIANT_SORTS:
            return Choice(f"sort:{_VARIANT_SORTS[variant]}", f":{variant}")
    if (asked := asked_tier(request)) is None:
        return None
    is_served = any(endpoint.service_tier == asked and not endpoint.disabled for endpoint in route.endpoints)
    return Choice(f"sort:{_TIER_SORTS[asked]}", "service_tier") if is_served else None


class _Scale(Struct):
    """Weighs the endpoints of one model for one request; `healths` are those of all of them."""

    route: ModelRoute
    tier: int
    healths: list[Health]
    request: InferenceRequest
    scene: Scene
    sizes: dict[bool, Size] = field(default_factory=dict)  # by whether the endpoint streams

    def weighed(self, subject: Subject) -> View:
        """Score one endpoint."""
        endpoint, health, route, now = subject.endpoint, subject.health, self.route, self.scene.now
        stream = streams_upstream(endpoint, self.request)
        size = self.sizes.get(stream)
        if size is None:
            num_out = self.scene.book.expected_num_out(route.id, stream, now)
            size = self.sizes[stream] = size_of(self.request, num_out)
        outlook = outlook_of(
            as_weighed(endpoint, route.endpoints),
            health,
            [peer for peer in self.healths if peer is not health] if len(self.healths) > 1 else (),
            size,
            stream=stream,
            load=subject.load,
            now=now,
        )
        value_of_time = _value_of_time(endpoint, route, self.request, self.scene)
        candidate = Candidate(
            endpoint,
            route,
            self.tier,
            outlook,
            score(outlook, value_of_time),
            engine_length=None if subject.load is None else subject.load.context_length,
        )
        return View(candidate, health, self.request, now, stream, size)


def _value_of_time(endpoint: Endpoint, route: ModelRoute, request: InferenceRequest, scene: Scene) -> float:
    """USD per second of waiting, and of our own machine if the endpoint has a shadow price. 0 is a value."""
    value = request.overrides.value_of_time
    if value is None:
        value = scene.settings.value_of_time if route.value_of_time is None else route.value_of_time
    return value + endpoint.shadow_price_per_hour / 3600


def _pinned(ranked: list[Ranked], scene: Scene) -> tuple[list[Candidate], str] | None:
    """Where only one provider can read the request's thoughts: its endpoint, then its others, nobody else."""
    if not scene.is_pinned:
        return None
    ordered = [r.view.candidate for r in ranked]
    maker = next((c for c in ordered if c.endpoint.identity == scene.sticky), None)
    if maker is None:
        return None
    peers = [
        c for c in ordered if c is not maker and c.endpoint.provider.slug == maker.endpoint.provider.slug
    ]
    return [replace(maker, share=1.0), *peers], "made the reasoning that the request carries"


def _stayed(
    ranked: list[Ranked], request: InferenceRequest, scene: Scene
) -> tuple[list[Candidate], str] | None:
    """Put the session's endpoint first, if it is as good a tier and not overloaded; `order` beats it."""
    if request.preferences.order:
        return None
    ordered = [r.view.candidate for r in ranked]
    best, tier = ordered[0], ranked[0].rank[:TIER_RANKS]
    stays = (r.view for r in ranked if r.rank[:TIER_RANKS] == tier)
    view = next((v for v in stays if v.candidate.endpoint.identity == scene.sticky), None)
    if view is None:
        return None
    sticky = view.candidate
    value_of_time = _value_of_time(sticky.endpoint, sticky.route, request, scene)
    if not is_worth_staying(sticky, best, view.size, value_of_time, scene.load_of(sticky.endpoint)):
        return None
    return [replace(sticky, share=1.0), *(c for c in ordered if c is not sticky)], "session's endpoint"


def _ranked(
    views: Sequence[View], choices: Mapping[str, Choice], needs: frozenset[str], arms: Assignments
) -> list[Ranked]:
    """Sort by rank, then by the strategy's key.

    Rank: misses the preferred speed, tier, place in `order`, arm of a split, loses parameters, silence.
    """
    if len(views) == 1:
        return [Ranked(views[0], (), 0.0)]  # first and last, whatever its rank
    request = views[0].request  # of all of them
    prefs = request.preferences
    # Keys of different strategies do not compare: then each model keeps its place.
    is_merged = prefs.sort_partition == "none" and len({choice.strategy for choice in choices.values()}) == 1
    is_urgent = asked_tier(request) == "priority"
    ranked: list[Ranked] = []
    for view in views:
        candidate, endpoint = view.candidate, view.candidate.endpoint
        strategy = ORDERS[choices[candidate.route.id].strategy]
        rank = (
            int(lags_behind(view)),
            0 if is_merged else candidate.tier,
            place(prefs.order, endpoint),
            arms.misses(endpoint, candidate.route),
            int(is_urgent and endpoint.service_tier != "priority"),
            int(not _takes_all(request, endpoint, needs)),
            2 * _is_overdone(view) + (strategy.shuns_outages and view.health.has_outage(view.now)),
        )
        ranked.append(Ranked(view, rank, strategy.key(view)))
    ranked.sort(key=lambda r: r.order)
    return ranked


def _is_overdone(view: View) -> bool:
    """Ask whether another request would come too soon for its rate limit, or only join others in silence."""
    return view.health.pace.is_ahead(view.now) or view.health.is_stalled(view.now, view.stream)


def _takes_all(request: InferenceRequest, endpoint: Endpoint, needs: frozenset[str]) -> bool:
    """Ask whether nothing would be dropped, and what changes the answer's contract is declared."""
    if needs and not all(declares(endpoint, name) for name in needs):
        return False
    return not request.parameters or not lost_parameters(request, endpoint)


def _failed_open(
    routes: tuple[ModelRoute, ...],
    choices: Mapping[str, Choice],
    exclusions: list[Exclusion],
    request: InferenceRequest,
    scene: Scene,
) -> Plan:
    """When only open breakers are in the way, try the best; never one whose provider refuses our account."""
    broken = [e for e in exclusions if e.filter == "breaker_open" and not e.is_domain]
    if not broken:
        strategy = choices[routes[0].id].strategy if routes else ""
        return Plan(routes, strategy, (), tuple(exclusions), "no endpoint is left", choices=choices)
    tiers = {route.id: tier for tier, route in _tiers(routes)}
    candidates = []
    for e in broken:
        subject = Subject(
            e.endpoint, request, scene.book.of(e.endpoint), scene.load_of(e.endpoint), scene.now
        )
        healths = [scene.book.of(peer) for peer in e.route.endpoints]
        scale = _Scale(e.route, tiers[e.route.id], healths, request, scene)
        candidates.append(scale.weighed(subject).candidate)
    best = min(candidates, key=lambda c: (c.tier, c.score.total))
    forced = replace(best, share=1.0, is_forced=True)
    kept = tuple(e for e in exclusions if e.endpoint is not best.endpoint)
    strategy, reason = choices[best.route.id].strategy, "every breaker is open: the best one is tried"
    return Plan(routes, strategy, (forced,), kept, reason, choices=choices)


def room_of(plan: Plan, request: InferenceRequest) -> int | None:
    """The longest context that this request is too long for, by its estimate, where it fits no candidate.

    None where it fits somebody, or where no context is in the way.
    """
    longest = request.prompt_tokens if request.context_tokens is None else request.context_tokens
    wanted = longest + (request.max_tokens or 0)
    rooms = [candidate.room for candidate in plan.candidates]
    if any(room is None or wanted <= room for room in rooms):
        return None
    rooms += [exclusion.room for exclusion in plan.exclusions if exclusion.filter == "context_length"]
    return max((room for room in rooms if room is not None and room < wanted), default=None)


def retry_at(exclusions: tuple[Exclusion, ...]) -> float | None:
    """The soonest moment at which time alone makes an excluded endpoint usable again; None if never.

    That a provider will be asked again which refuses our account promises nothing where others will be back.
    """
    waiting = [e for e in exclusions if e.filter in TEMPORARY]
    moments = [e.until for e in promising(waiting) if e.until is not None]
    return min(moments, default=None)


def promising(exclusions: Sequence[Exclusion]) -> Sequence[Exclusion]:
    """Leave out providers that refuse our account, unless there is nobody else."""
    return [e for e in exclusions if not e.is_domain] or exclusions
