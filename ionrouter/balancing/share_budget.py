"""A token bucket filled by requests, not by time: at most a share of them may do something extra.

After n requests at most 1 + share * n extras have been taken, however they are spread.
"""

from __future__ import annotations

from dataclasses import dataclass

ROUNDING = 1e-9  # ten tenths are one
MAX_TOKENS = 10.0  # saved up by quiet times: a burst of slowness may use so many at once


@dataclass(slots=True)
class ShareBudget:
    """`num_taken` and `num_refused` count for the metrics."""

    num_taken: int = 0
    num_refused: int = 0
    _tokens: float = 1.0

    def deposit(self, share: float) -> None:
        """Note one request, worth `share` of an extra."""
        self._tokens = min(self._tokens + share, MAX_TOKENS)

    def try_take(self) -> bool:
        """Claim one extra; False when the share is used up."""
        if self._tokens < 1.0 - ROUNDING:
            self.num_refused += 1
            return False
        self._tokens -= 1.0
        self.num_taken += 1
        return True

    def refund(self) -> None:
        """Give a claim back: it was not used."""
        self._tokens += 1.0
        self.num_taken -= 1
