"""A provider's rate limit, learned from its refusals: how often it may be asked. Arithmetic, calls no clock.

The first 429 sets the pace to nine tenths of what was taken in about the last second; each further one takes
a tenth off, and time adds 2% a second: additive increase's idea (Chiu and Jain, 1989) in proportions, since
limits differ by orders of magnitude. A limit that was lifted is forgotten in minutes. Requests are spaced by
a virtual schedule (the generic cell rate algorithm, ITU-T I.371), a few of them at once.

Taken is what was sent and not refused, whether it is answered yet or not: of a hundred sent at once the first
refusal comes before any answer, and what was taken is known once the last of them is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ionrouter.balancing.decay import DecayedMean

DECREASE = 0.9
GROWTH_PER_S = 0.02
LOWEST = 0.1  # requests per second
BURST = 3.0  # requests at once
TAKEN_HALF_LIFE_S = 1.0  # short: a burst into a limit that was far off tells more than the quiet before it


@dataclass(slots=True)
class Pace:
    """Requests per second that an endpoint takes; `rate_at_refusal` None: it never refused."""

    rate_at_refusal: float | None = None
    refused_at: float = -math.inf
    _known: float = math.inf  # before the latest news
    _next_at: float = -math.inf
    _taken: DecayedMean = field(default_factory=lambda: DecayedMean(TAKEN_HALF_LIFE_S))  # sent, not refused

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
        self._taken.add(1.0, now)
        if self.rate_at_refusal is not None:
            rate = self.rate(now)
            self._next_at = max(self._next_at, now - (BURST - 1) / rate) + 1 / rate

    def refuse(self, now: float, sent_at: float) -> bool:
        """Note a 429 to a request that was sent at a moment; tells whether it is news.

        One that was on its way when another was refused tells no more than that it was not taken.
        """
        is_news = sent_at >= self.refused_at
        if is_news:
            self._known, self.refused_at = self.rate(now), now
        self._taken.add(0.0, now, -_kept(now - sent_at))
        num_taken = self._taken.weight(now) / _kept(now - self.refused_at)  # as of the news
        found = num_taken * math.log(2) / TAKEN_HALF_LIFE_S
        if num_taken < 0.5:
            found = self._known  # a quota that is used up is no pace
        elif is_news or self.rate_at_refusal is None:
            found = min(found, self._known)
        else:
            found = min(found, self.rate_at_refusal / DECREASE)  # who was sent since is no part of it
        self.rate_at_refusal = max(DECREASE * found, LOWEST) if found < math.inf else None
        return is_news


def _kept(elapsed_s: float) -> float:
    """Weight left of a request that was sent so long ago."""
    return float(0.5 ** (min(max(elapsed_s, 0.0), 600.0) / TAKEN_HALF_LIFE_S))
