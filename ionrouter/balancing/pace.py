"""A provider's rate limit, learned from its refusals: how often it may be asked. Arithmetic, calls no clock.

The first 429 sets the pace to nine tenths of what it accepted lately; each further one takes a tenth off,
and time adds 2% a second: additive increase's idea (Chiu and Jain, 1989) in proportions, since limits differ
by orders of magnitude. A limit that was lifted is forgotten in minutes. Requests are spaced by a virtual
schedule (the generic cell rate algorithm, ITU-T I.371), a few of them at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ionrouter.balancing.decay import DecayedMean

DECREASE = 0.9
GROWTH_PER_S = 0.02
LOWEST = 0.1  # requests per second
BURST = 3.0  # requests at once
ACCEPTED_HALF_LIFE_S = 5.0


@dataclass(slots=True)
class Pace:
    """Requests per second that an endpoint takes; `rate_at_refusal` None: it never refused."""

    rate_at_refusal: float | None = None
    refused_at: float = -math.inf
    _next_at: float = -math.inf
    _accepted: DecayedMean = field(default_factory=lambda: DecayedMean(ACCEPTED_HALF_LIFE_S))

    def rate(self, now: float) -> float:
        """Tell the pace at a moment; infinite if nothing was refused."""
        if self.rate_at_refusal is None:
            return math.inf
        return self.rate_at_refusal * math.exp(min(GROWTH_PER_S * max(now - self.refused_at, 0.0), 50.0))

    def is_ahead(self, now: float) -> bool:
        """Ask whether another request now would come too soon."""
        return now < self._next_at

    def send(self, now: float) -> None:
        """Note a request."""
        if self.rate_at_refusal is not None:
            rate = self.rate(now)
            self._next_at = max(self._next_at, now - (BURST - 1) / rate) + 1 / rate

    def accept(self, now: float) -> None:
        """Note an answer."""
        self._accepted.add(1.0, now)

    def refuse(self, now: float) -> None:
        """Note a 429; those that came together count once."""
        accepted = self._accepted.weight(now) * math.log(2) / ACCEPTED_HALF_LIFE_S
        known = self.rate(now)
        if known < math.inf and now - self.refused_at < 1 / known:
            return
        self.rate_at_refusal = max(DECREASE * min(known, accepted or known, 1e6), LOWEST)
        self.refused_at = now
