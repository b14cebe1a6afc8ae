"""Alarm: a deadline that is moved on with every event, for one timer. Knows not what it guards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Alarm:
    """One timer, re-armed only when it rings early. Belongs to the loop that runs when it is made."""

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.loop = asyncio.get_running_loop()  # asked for once: every asking is a system call in Python 3.11

    def set(self, delay_s: float | None) -> None:
        """Ring `delay_s` from now, instead of whenever was said before; None: not at all."""
        if delay_s is None:
            self._deadline = None
            return
        self._deadline = self.loop.time() + delay_s
        if self._timer is not None and self._timer.when() > self._deadline:
            self.close()
        if self._timer is None:
            self._timer = self.loop.call_at(self._deadline, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._deadline is None:
            return
        if self.loop.time() < self._deadline:
            self._timer = self.loop.call_at(self._deadline, self._look)
        else:
            self._ring()
