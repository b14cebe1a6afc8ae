"""The resolutions of the statistics: how wide their buckets are, how long each keeps them, what each answers.
Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Resolution = Literal["minute", "hour", "day"]
UNITS_S: Mapping[str, float] = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}  # of stretches such as 30m


@dataclass(frozen=True, slots=True)
class Grain:
    """One resolution. `longest_s` and `oldest_s` bound the stretches that it answers by itself."""

    width_s: int
    max_buckets: int
    longest_s: float  # at most 180 buckets an answer
    oldest_s: float  # how long ago a stretch may begin: a little less than what is kept

    @property
    def kept_s(self) -> int:
        """How far back it reaches."""
        return self.width_s * self.max_buckets


MINUTE = Grain(60, 48 * 60, 3 * 3600.0, 47 * 3600.0)
HOUR = Grain(3600, 31 * 24, 7 * 86_400.0, 30 * 86_400.0)
DAY = Grain(86_400, 400, float("inf"), float("inf"))
GRAINS: Mapping[Resolution, Grain] = {"minute": MINUTE, "hour": HOUR, "day": DAY}  # finest first


def width_for(stretch_s: float, age_s: float = 0.0) -> int:
    """The finest buckets that answer a question about so long a stretch, begun `age_s` ago."""
    return next(
        grain.width_s for grain in GRAINS.values() if stretch_s <= grain.longest_s and age_s <= grain.oldest_s
    )
