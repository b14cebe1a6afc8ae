"""How many retries of the same endpoint are fair: a share of the traffic, not a count per request.

The argument is tower's (`tower::retry::budget`): a fixed count per request multiplies the load on a
server exactly when it is failing, a budget caps the multiplication.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

RETRY_SHARE = 0.1  # one retry earned by ten requests
RESERVE = 3.0  # a quiet endpoint may retry too
HALF_LIFE_S = 60.0


@dataclass(slots=True)
class RetryBudget:
    """Tokens: every request deposits a tenth, every retry takes one; deposits fade within minutes."""

    num_taken: int = 0  # ever, for the metrics
    num_refused: int = 0
    _tokens: float = 0.0
    _taken: float = 0.0
    _at: float = -math.inf

    def deposit(self, now: float) -> None:
        """Note one request."""
        self._fade(now)
        self._tokens += RETRY_SHARE

    def try_take(self, now: float) -> bool:
        """Claim one retry; False when the share is used up."""
        self._fade(now)
        if self._taken + 1.0 > self._tokens + RESERVE:
            self.num_refused += 1
            return False
        self._taken += 1.0
        self.num_taken += 1
        return True

    def _fade(self, now: float) -> None:
        kept = 0.5 ** ((now - self._at) / HALF_LIFE_S) if now > self._at else 1.0
        self._tokens, self._taken, self._at = self._tokens * kept, self._taken * kept, now
