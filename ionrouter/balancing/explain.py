"""A plan for people: every endpoint with its figures, or the filter that removed it. Decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

from ionrouter.balancing.plan import Candidate, Plan


@dataclass(frozen=True, slots=True)
class ExplainedCandidate:
    """One endpoint that could serve. USD, seconds, tokens/s; `share` is the chance to be tried first."""

    order: int  # 1-based, as this request would try them
    endpoint_id: str
    model_id: str
    provider_name: str
    tag: str
    tier: int  # 0: the model asked for
    prompt_price: float  # USD per million tokens
    completion_price: float
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


@dataclass(frozen=True, slots=True)
class ExplainedExclusion:
    """One endpoint that could not, by which filter and why."""

    endpoint_id: str
    model_id: str
    provider_name: str
    filter: str
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A dry run of select."""

    requested_model: str
    models: tuple[str, ...]  # tiers, in order
    strategy: str
    reason: str
    candidates: tuple[ExplainedCandidate, ...]
    excluded: tuple[ExplainedExclusion, ...]


def explained(requested_model: str, plan: Plan) -> Explanation:
    """Write a plan out."""
    return Explanation(
        requested_model=requested_model,
        models=tuple(route.id for route in plan.routes),
        strategy=plan.strategy,
        reason=plan.reason,
        candidates=tuple(_candidate(i, c) for i, c in enumerate(plan.candidates, 1)),
        excluded=tuple(
            ExplainedExclusion(e.endpoint.id, e.route.id, e.endpoint.provider.name, e.filter, e.reason)
            for e in plan.exclusions
        ),
    )


def _candidate(order: int, candidate: Candidate) -> ExplainedCandidate:
    endpoint, outlook, score = candidate.endpoint, candidate.outlook, candidate.score
    return ExplainedCandidate(
        order=order,
        endpoint_id=endpoint.id,
        model_id=candidate.route.id,
        provider_name=endpoint.provider.name,
        tag=endpoint.tag,
        tier=candidate.tier,
        prompt_price=endpoint.price.prompt * 1e6,
        completion_price=endpoint.price.completion * 1e6,
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
    )
