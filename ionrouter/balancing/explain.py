"""A plan for people: every endpoint with its figures, or the filter that removed it. Decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

from ionrouter.balancing.assumed_price import is_unpriced
from ionrouter.balancing.health import HealthBook
from ionrouter.balancing.hedging import patience_s
from ionrouter.balancing.outlook import streams_upstream
from ionrouter.balancing.plan import Candidate, Plan
from ionrouter.routing.table import Endpoint
from ionrouter.schema.request import InferenceRequest


@dataclass(frozen=True, slots=True)
class ExplainedCandidate:
    """One endpoint that could serve. USD, seconds, tokens/s; `share` is the chance to be tried first."""

    order: int  # 1-based, as this request would try them
    endpoint_id: str
    model_id: str
    provider_name: str
    tag: str
    tier: int  # 0: the model asked for
    prompt_price: float | None  # USD per million tokens; None: nobody said
    completion_price: float | None
    expected_price: float
    expected_s: float  # to a whole answer
    expected_ttft_s: float
    expected_throughput: float
    success_rate: float  # before and after commit together
    good: float
    waste: float
    broken: float
    score: float
    share: float
    breaker: str  # closed, open, half_open
    hedge_after_s: float | None  # without an answer for so long, the next one is asked, too; None: never


@dataclass(frozen=True, slots=True)
class ExplainedExclusion:
    """One endpoint that could not, by which filter and why."""

    endpoint_id: str
    model_id: str
    provider_name: str
    filter: str
    reason: str
    breaker: str


@dataclass(frozen=True, slots=True)
class ExplainedSplit:
    """One split on the way: which arm this request is in, and by what it stays there."""

    name: str
    arm: str
    by: str  # session, user, key, chance
    percents: dict[str, float]


@dataclass(frozen=True, slots=True)
class ExplainedStrategy:
    """How one model's endpoints are ordered, and which field says so."""

    model_id: str
    strategy: str
    source: str  # as in plan.Choice


@dataclass(frozen=True, slots=True)
class Explanation:
    """A dry run of select."""

    requested_model: str
    models: tuple[str, ...]  # tiers, in order
    strategy: str  # the first candidate's model's
    strategies: tuple[ExplainedStrategy, ...]  # of all models, in order
    reason: str
    candidates: tuple[ExplainedCandidate, ...]
    excluded: tuple[ExplainedExclusion, ...]
    splits: tuple[ExplainedSplit, ...] = ()
    hedge: str | None = None  # the first model's, in words
    shadow: str | None = None  # and what of its requests is copied where


@dataclass(frozen=True, slots=True)
class Moment:
    """What is known of the endpoints now."""

    book: HealthBook
    now: float

    def breaker(self, endpoint: Endpoint) -> str:
        """Name the state of an endpoint's circuit breaker."""
        return self.book.of(endpoint).breaker.state(self.now).value


def explained(request: InferenceRequest, plan: Plan, moment: Moment) -> Explanation:
    """Write a plan out."""
    first = plan.routes[0] if plan.routes else None
    return Explanation(
        requested_model=request.model,
        models=tuple(route.id for route in plan.routes),
        strategy=plan.strategy,
        strategies=tuple(
            ExplainedStrategy(model, choice.strategy, choice.source) for model, choice in plan.choices.items()
        ),
        reason=plan.reason,
        candidates=tuple(_candidate(i, c, plan, request, moment) for i, c in enumerate(plan.candidates, 1)),
        excluded=tuple(
            ExplainedExclusion(
                e.endpoint.id,
                e.route.id,
                e.endpoint.provider.name,
                e.filter,
                e.reason,
                moment.breaker(e.endpoint),
            )
            for e in plan.exclusions
        ),
        splits=tuple(
            ExplainedSplit(a.split.name, a.arm.name, a.by, {arm.name: arm.percent for arm in a.split.arms})
            for a in plan.assignments
        ),
        hedge=str(first.hedge) if first and first.hedge else None,
        shadow=str(first.shadow) if first and first.shadow else None,
    )


def _candidate(
    order: int, candidate: Candidate, plan: Plan, request: InferenceRequest, moment: Moment
) -> ExplainedCandidate:
    endpoint, outlook, score = candidate.endpoint, candidate.outlook, candidate.score
    price = None if is_unpriced(endpoint) else endpoint.price
    return ExplainedCandidate(
        order=order,
        endpoint_id=endpoint.id,
        model_id=candidate.route.id,
        provider_name=endpoint.provider.name,
        tag=endpoint.tag,
        tier=candidate.tier,
        prompt_price=None if price is None else price.prompt * 1e6,
        completion_price=None if price is None else price.completion * 1e6,
        expected_price=outlook.price,
        expected_s=outlook.ok_s,
        expected_ttft_s=outlook.ttft_s,
        expected_throughput=outlook.throughput,
        success_rate=(1 - outlook.fail_before) * (1 - outlook.fail_after),
        good=score.good,
        waste=score.waste,
        broken=score.broken,
        score=score.total,
        share=candidate.share,
        breaker=moment.breaker(endpoint),
        hedge_after_s=_hedge_after_s(candidate, plan, request, moment),
    )


def _hedge_after_s(
    candidate: Candidate, plan: Plan, request: InferenceRequest, moment: Moment
) -> float | None:
    hedge = candidate.route.hedge
    is_alone = not any(c.tier == candidate.tier and c is not candidate for c in plan.candidates)
    if hedge is None or is_alone:
        return None
    stream = streams_upstream(candidate.endpoint, request)
    return patience_s(hedge, moment.book.of(candidate.endpoint), stream, moment.now)
