"""A circuit breaker in the electrical sense: closed, current flows; open, it does not.

`allows` asks, `try_acquire` claims. Knows nothing of requests or endpoints, and calls no clock.

    closed --(failures)--> open --(its time is over)--> half-open: one trial at a time
    half-open --trial succeeds--> closed
    half-open --trial fails--> open, twice as long as before
    half-open --trial is handed back--> half-open, free for the next one
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from msgspec import Struct

from ionrouter.balancing.decay import DecayedMean
from ionrouter.routing.table import BreakerRules

MIN_SAMPLES = 10.0  # recent ones, before a share of failures says anything
RATE_HALF_LIFE_S = 30.0


class BreakerState(enum.Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Permit(Struct, frozen=True):
    """Leave to send one request. A trial must end in `succeed`, `fail` or `release`."""

    is_trial: bool


@dataclass(slots=True)
class CircuitBreaker:
    """`rules` may be replaced at any time: the next failure is judged by the new ones."""

    rules: BreakerRules = field(default_factory=BreakerRules)
    until: float = 0.0  # open before this moment, unless closed
    is_domain: bool = False  # opened because the provider refuses our account: never failed open
    is_closed: bool = True
    _has_trial: bool = False
    num_openings: int = 0  # since it last closed: the exponent of the open time
    _consecutive: int = 0
    _errors: DecayedMean = field(default_factory=lambda: DecayedMean(RATE_HALF_LIFE_S))

    def state(self, now: float) -> BreakerState:
        """Name the state at `now`."""
        if self.is_closed:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self.until else BreakerState.HALF_OPEN

    @property
    def cause(self) -> str:
        """Why it is open, for people."""
        return (
            "the provider refuses our account or model, or redirects" if self.is_domain else "it kept failing"
        )

    def allows(self, now: float) -> bool:
        """Ask whether a request could be sent now."""
        state = self.state(now)
        return state is BreakerState.CLOSED or (state is BreakerState.HALF_OPEN and not self._has_trial)

    def try_acquire(self, now: float) -> Permit | None:
        """Claim leave to send a request; None when there is none, or somebody else holds the trial."""
        if self.is_closed:
            return Permit(is_trial=False)
        if not self.allows(now):
            return None
        self._has_trial = True
        return Permit(is_trial=True)

    def release(self, permit: Permit) -> None:
        """Hand a permit back without a verdict: the client left, or the request itself was bad."""
        if permit.is_trial:
            self._has_trial = False

    def succeed(self, now: float) -> None:
        """Record a request that worked: closes the breaker, whatever its state."""
        self._errors.add(0.0, now)
        self.is_closed, self._has_trial, self.is_domain = True, False, False
        self._consecutive = self.num_openings = 0

    def fail(self, now: float, *, is_overtaken: bool = False) -> None:
        """Record a failure: opens after enough of them, re-opens for longer after a failed trial.

        `is_overtaken`: a request that began later has been answered, so it is none of those in a row.
        """
        self._errors.add(1.0, now)
        self._consecutive += not is_overtaken
        if self.rules.cooldown_s <= 0:
            return
        if not self.is_closed:
            if now >= self.until:
                self.is_domain = False
                self._open(now)
        elif self._consecutive >= self.rules.max_failures or self._is_failing(now):
            self._open(now)

    def trip(self, now: float) -> bool:
        """Open at once: the provider refuses the account or the model. True if it was closed before."""
        was_closed = self.is_closed
        self.is_domain = True
        if was_closed or now >= self.until:
            self._open(now)
        return was_closed

    def _is_failing(self, now: float) -> bool:
        rate = self._errors.mean(now, 0.0, 1e-9)
        return self._errors.weight(now) >= MIN_SAMPLES and rate >= self.rules.max_error_rate

    def _open(self, now: float) -> None:
        base = self.rules.cooldown_s if self.rules.cooldown_s > 0 else BreakerRules().cooldown_s
        self.until = now + min(base * 2.0**self.num_openings, max(self.rules.max_cooldown_s, base))
        self.num_openings = min(self.num_openings + 1, 32)
        self.is_closed, self._has_trial = False, False
