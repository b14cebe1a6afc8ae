"""How fast sequences are answered, per sequence at the batch of the moment. Knows times and counts only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ionrouter.engine.mailbox import TokenEvent

_WEIGHT = 0.2  # of the newest answer in the moving average
_MIN_TOKENS = 4  # an answer shorter than this says little about speed


@dataclass(slots=True)
class _Run:
    first_at: float | None = None
    num_tokens: int = 0  # after the first event


class Speed:
    """Exponential moving average of answers' decode rates."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._runs: dict[int, _Run] = {}
        self.decode_rate: float | None = None  # tokens/s of one sequence

    def start(self, sequence: int) -> None:
        """Begin to watch a sequence; `end` forgets it."""
        self._runs[sequence] = _Run()

    def record(self, sequence: int, event: TokenEvent, now: float | None = None) -> None:
        """Count an event, at the clock's `now` if that is known; the first only sets when counting begins."""
        run = self._runs.get(sequence)
        if run is None:
            return
        now = self._clock() if now is None else now
        if run.first_at is None:
            run.first_at = now
            return
        run.num_tokens += event.num_tokens
        if event.finish in ("stop", "length") and run.num_tokens >= _MIN_TOKENS and now > run.first_at:
            self._average(run.num_tokens / (now - run.first_at))

    def end(self, sequence: int) -> None:
        self._runs.pop(sequence, None)

    def _average(self, rate: float) -> None:
        old = self.decode_rate
        self.decode_rate = rate if old is None else old + _WEIGHT * (rate - old)
