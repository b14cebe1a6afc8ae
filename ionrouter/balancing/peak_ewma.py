"""Peak EWMA: an average of times that believes bad news at once and good news slowly.

The idea is Finagle's (Twitter, "Peak EWMA" load metric, 2015): a sample above the average replaces it, a
sample below pulls it down with a time constant. Unlike there, reading never changes the state, and an
old average fades towards what one would expect of an endpoint never measured, so that a recovered one
is not shunned for ever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DECAY_S = 5.0  # time constant of good news; Finagle's default is 10 s
FADE_S = 900.0  # time constant of forgetting: after an hour without a sample 2% of it is left


@dataclass(slots=True)
class PeakEwma:
    """One average; `value` is None before the first sample. Any unit."""

    value: float | None = None
    at: float = -math.inf  # when the last sample came

    def observe(self, sample: float, now: float) -> None:
        """Take in one sample."""
        if self.value is None or sample >= self.value:
            self.value = sample
        else:
            age_s = now - self.at if now > self.at else 0.0
            kept = math.exp(-age_s / DECAY_S)
            if kept > 0.9:
                kept = 0.9  # samples that come together must still pull: a tenth of the way down each
            self.value = self.value * kept + sample * (1 - kept)
        self.at = now

    def estimate(self, now: float, prior: float) -> float:
        """Read the average, faded towards `prior` by the age of the last sample."""
        if self.value is None:
            return prior
        age_s = now - self.at if now > self.at else 0.0
        trust = math.exp(-age_s / FADE_S)
        return trust * self.value + (1 - trust) * prior
