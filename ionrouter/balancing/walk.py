"""Where to go after a failure: the failure-class table as a walk over a plan's candidates.

Pure bookkeeping of one request: each endpoint at most once, at most `max_attempts` attempts. Starts nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ionrouter.balancing.fields import declares
from ionrouter.balancing.plan import Candidate
from ionrouter.errors import FailureClass, UpstreamError

Rest = list[Candidate]


def _anyone(rest: Rest, _failed: Candidate, _error: UpstreamError) -> Rest:
    return rest


def _nobody(_rest: Rest, _failed: Candidate, _error: UpstreamError) -> Rest:
    return []


def _other_domains_first(rest: Rest, failed: Candidate, _error: UpstreamError) -> Rest:
    """Within each tier, candidates that share the failed one's account or region go last."""

    def shares_domain(candidate: Candidate) -> bool:
        domain = failed.endpoint.domain
        return bool(domain) and candidate.endpoint.domain == domain

    if any(a.tier > b.tier for a, b in itertools.pairwise(rest)):  # tiers are merged: `sort` over all models
        return sorted(rest, key=shares_domain)
    return sorted(rest, key=lambda c: (c.tier, shares_domain(c)))


def _those_that_take_it(rest: Rest, failed: Candidate, error: UpstreamError) -> Rest:
    """Of the same model, only endpoints that declare the parameter, or a larger context."""

    def takes_it(candidate: Candidate) -> bool:
        if candidate.route.id != failed.route.id:
            return True
        if "context_length_exceeded" in (error.code, error.error_type):
            return (candidate.room or 0) > (failed.room or 0)
        name = (error.param or "").partition(".")[0].partition("[")[0]
        return bool(name) and declares(candidate.endpoint, name)

    return [c for c in rest if takes_it(c)]


def _other_models(rest: Rest, failed: Candidate, _error: UpstreamError) -> Rest:
    return [c for c in rest if c.route.id != failed.route.id]


NEXT: Mapping[FailureClass, Callable[[Rest, Candidate, UpstreamError], Rest]] = {
    FailureClass.TRANSIENT: _anyone,
    FailureClass.DOMAIN: _other_domains_first,
    FailureClass.CAPACITY: _other_domains_first,
    FailureClass.REQUEST: _nobody,
    FailureClass.ENDPOINT_REQUEST: _those_that_take_it,
    FailureClass.CONTENT: _other_models,
    FailureClass.OWN_LIMIT: _anyone,  # the engine inside, or who has a connection already
    FailureClass.CLIENT_LEFT: _nobody,
    FailureClass.STOPPED: _nobody,
    FailureClass.LOST_RACE: _nobody,
}


def still_allows(other: Candidate, failed: Candidate, error: UpstreamError) -> bool:
    """Ask whether an attempt elsewhere is still worth its while after this failure."""
    return bool(NEXT[error.failure]([other], failed, error))


@dataclass(slots=True)
class Walk:
    """The candidates still to try, and what went wrong so far: (endpoint id, error), in order tried."""

    rest: Rest
    max_attempts: int
    errors: list[tuple[str, UpstreamError]] = field(default_factory=list)
    num_attempts: int = 0

    @classmethod
    def over(cls, candidates: Sequence[Candidate], max_attempts: int) -> Walk:
        """Start at the first candidate."""
        return cls(list(candidates), max_attempts)

    def take(self) -> Candidate | None:
        """Take the next candidate off the list; None when the walk is over."""
        return self.rest.pop(0) if self.rest and self.num_attempts < self.max_attempts else None

    def take_beside(self, running: Candidate) -> Candidate | None:
        """Take the next one that could answer in a running one's stead: of its tier, at another upstream."""
        found = next((c for c in self.rest if _is_beside(c, running)), None)
        if found is None or self.num_attempts >= self.max_attempts:
            return None
        self.rest.remove(found)
        return found

    def has_beside(self, running: Candidate) -> bool:
        """Ask whether there is such a one."""
        return self.num_attempts < self.max_attempts and any(_is_beside(c, running) for c in self.rest)

    def has_other_model(self, candidate: Candidate) -> bool:
        """Ask whether another model could still be tried after this candidate, about to be tried."""
        if not self.rest or self.num_attempts + 1 >= self.max_attempts:
            return False
        return any(c.route.id != candidate.route.id for c in self.rest)

    def fail(self, candidate: Candidate, error: UpstreamError) -> None:
        """Note a failed attempt and keep whom its class leaves; one noted already changes nothing."""
        if any(noted is error for _, noted in self.errors):
            return
        self.errors.append((candidate.endpoint.id, error))
        left = NEXT[error.failure](self.rest, candidate, error)
        # Two models may lead to the same upstream: once is enough.
        self.rest = [c for c in left if c.endpoint.identity != candidate.endpoint.identity]


def _is_beside(candidate: Candidate, running: Candidate) -> bool:
    return candidate.tier == running.tier and candidate.endpoint.identity != running.endpoint.identity
