"""Averages that forget: a mean, a share and a median in which old samples count less.

Nothing here calls a clock, and reading never changes anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

HALF_LIFE_S = 600.0  # a sample counts half after ten minutes: outages are over by then, habits are not


def _kept(elapsed_s: float, half_life_s: float) -> float:
    """Weight left of a sample of that age, in (0, 1]. A clock that steps back forgets nothing."""
    return float(0.5 ** (elapsed_s / half_life_s)) if elapsed_s > 0.0 else 1.0


@dataclass(slots=True)
class DecayedMean:
    """Mean of samples, each halved in weight every `half_life_s`."""

    half_life_s: float = HALF_LIFE_S
    _sum: float = 0.0
    _weight: float = 0.0
    _at: float = -math.inf

    def add(self, value: float, now: float, weight: float = 1.0) -> None:
        """Take in one sample."""
        elapsed_s = now - self._at  # and as in `_kept`: a request asks and adds a dozen times
        kept: float = 0.5 ** (elapsed_s / self.half_life_s) if elapsed_s > 0.0 else 1.0
        self._sum = self._sum * kept + value * weight
        self._weight = self._weight * kept + weight
        self._at = now

    def weight(self, now: float) -> float:
        """Tell how many samples' worth of evidence is left."""
        return self._weight * _kept(now - self._at, self.half_life_s)

    def mean(self, now: float, prior: float, pseudo: float) -> float:
        """Blend the samples with `pseudo` imagined ones of value `prior`."""
        if not self._weight:
            return prior  # most shares of failures: nothing failed yet
        elapsed_s = now - self._at
        kept: float = 0.5 ** (elapsed_s / self.half_life_s) if elapsed_s > 0.0 else 1.0
        return (self._sum * kept + prior * pseudo) / (self._weight * kept + pseudo)


@dataclass(slots=True)
class DecayedMedian:
    """Median of samples, each halved in weight every `half_life_s`, from a histogram of bounded size.

    Bins are 10% wide, so that the answer is within 5% of the true weighted median.
    """

    half_life_s: float = HALF_LIFE_S
    _bins: dict[float, float] = field(default_factory=dict)  # middle of a bin -> weight at `_at`
    _at: float = -math.inf

    _GROWTH = math.log(1.1)

    def add(self, value: float, now: float) -> None:
        """Take in one sample of at least 0; below 1 counts as 1."""
        kept = _kept(now - self._at, self.half_life_s)
        middle = math.exp(math.floor(math.log(max(value, 1.0)) / self._GROWTH + 0.5) * self._GROWTH)
        self._bins = {key: weight * kept for key, weight in self._bins.items() if weight * kept > 1e-6}
        self._bins[middle] = self._bins.get(middle, 0.0) + 1.0
        self._at = now

    def median(self, now: float, prior: float, pseudo: float) -> float:
        """Read the median, with `pseudo` imagined samples of value `prior` among the real ones."""
        kept = _kept(now - self._at, self.half_life_s)
        weighted = [(middle, weight * kept) for middle, weight in self._bins.items()]
        weighted.append((prior, pseudo))
        half = sum([weight for _, weight in weighted]) / 2
        for value, weight in sorted(weighted):
            half -= weight
            if half <= 0:
                return value
        return prior
