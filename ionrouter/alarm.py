"""Deadlines that are moved on with every event, for one timer. What they guard is not known here."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Protocol


class Alarm:
    """One timer, re-armed only when it rings early. Belongs to the loop that runs when it is made."""

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        # Who has set it may move it on, to later than it was: the timer looks again when it rings.
        self.deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.loop = asyncio.get_running_loop()  # asked for once: every asking is a system call in Python 3.11

    def set(self, delay_s: float | None) -> None:
        """Ring `delay_s` from now, instead of whenever was said before; None: not at all."""
        if delay_s is None:
            self.deadline = None
            return
        self.deadline = self.loop.time() + delay_s
        if self._timer is not None and self._timer.when() > self.deadline:
            self.close()
        if self._timer is None:
            self._timer = self.loop.call_at(self.deadline, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self.deadline is None:
            return
        if self.loop.time() < self.deadline:
            self._timer = self.loop.call_at(self.deadline, self._look)
        else:
            self._ring()


class Guarded(Protocol):
    """Who is told when the loop's clock has come to `deadline`."""

    deadline: float

    def ring(self) -> None: ...


class Deadlines:
    """One timer for the deadlines of many: to start and stop a timer costs more than most of them live.

    It is moved only for a deadline before all others; when it rings it looks whose time is up.
    """

    def __init__(self) -> None:
        self._waiting: set[Guarded] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = math.inf

    def set(self, who: Guarded, loop: asyncio.AbstractEventLoop, delay_s: float) -> None:
        """Ring `delay_s` from now, instead of whenever was said before."""
        who.deadline = deadline = loop.time() + delay_s
        if loop is not self._loop:
            self._move_to(loop)
        self._waiting.add(who)
        if deadline < self._rings_at:
            self._ring_at(deadline)

    def clear(self, who: Guarded) -> None:
        """Do not ring; nothing if it is not set."""
        self._waiting.discard(who)

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin anew: nobody waits in a loop that has ended."""
        self._stop()
        self._waiting.clear()
        self._loop = loop

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._rings_at = None, math.inf

    def _ring_at(self, when: float) -> None:
        self._stop()
        assert self._loop is not None
        self._timer, self._rings_at = self._loop.call_at(when, self._look), when

    def _look(self) -> None:
        assert self._loop is not None
        self._timer, self._rings_at = None, math.inf
        now = self._loop.time()
        due = [who for who in self._waiting if who.deadline <= now]
        later = min((who.deadline for who in self._waiting if who.deadline > now), default=None)
        if later is not None:
            self._ring_at(later)  # first: who rings may fail
        for who in due:
            if who in self._waiting and who.deadline <= now:  # not cleared or moved on by another that rang
                self._waiting.discard(who)
                who.ring()
