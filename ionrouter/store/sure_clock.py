"""The moment by which things are thrown away: of a clock that has gone evenly for a while.

A machine that wakes, or has no network yet, may be years ahead for minutes; what is deleted then is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

_log = structlog.get_logger(__name__)

EVEN_S = 1800.0  # beside the monotonic clock; until then whoever sets clocks has had a try
JUMP_S = 60.0  # between two looks; what is slewed in a minute is milliseconds


@dataclass(slots=True)
class SureClock:
    """To be looked at each minute or so, or jumps there and back would not be seen."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    _offset: float | None = None  # between the two, when last looked at
    _even_since: float = 0.0  # monotonic

    def now(self) -> float | None:
        """Wall clock; None while it has not gone evenly for long, as after a start."""
        now, steady = self.wall(), self.monotonic()
        before, self._offset = self._offset, now - steady
        if before is None:
            self._even_since = steady
        elif abs(jump := self._offset - before) > JUMP_S:
            self._even_since = steady
            _log.warning(
                "clock_jumped", seconds=round(jump, 1), consequence="nothing is forgotten for a while"
            )
        return now if steady - self._even_since >= EVEN_S else None
