"""Telling observers of requests that ended: at once, or a moment later and several requests at a time.

Knows no observer. What one raises is logged and reaches neither the others nor the request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import structlog

from ionrouter.schema.events import Observer, RequestRecord

log = structlog.get_logger(__name__)

DELAY_S = 0.005  # by then the answer is written
MAX_AT_ONCE = 16  # told between two looks at the event loop: less than a millisecond
MAX_WAITING = 128


def tell(observers: Sequence[Observer], records: Sequence[RequestRecord]) -> None:
    """Tell each observer of all records, in their order: while it is told its code stays in the cache."""
    for observer in observers:
        for record in records:
            try:
                observer.observe(record)
            except Exception:
                log.exception("observer_failed", observer=repr(observer.observe), request=record.id)


class DeferredObservers:
    """An observer that tells others after the answer, so that nobody waits for it. Not for several threads.

    Every record is told exactly once, in order. Who reads what an observer keeps calls `flush` first, and so
    reads of everything that has ended.
    """

    def __init__(self, observers: Sequence[Observer], *, delay_s: float = DELAY_S) -> None:
        self._observers, self._delay_s = tuple(observers), delay_s
        self._waiting: deque[RequestRecord] = deque()
        self._turn: asyncio.Handle | None = None
        self._is_closed = False

    def observe(self, record: RequestRecord) -> None:
        """Take a record; it is told within a few milliseconds."""
        self._waiting.append(record)
        if self._is_closed:
            self.flush()
        elif self._turn is None:
            self._await_turn()
        elif len(self._waiting) > MAX_WAITING:
            self._tell_some()  # requests end faster than turns come

    def flush(self) -> None:
        """Tell of all that has ended."""
        while self._waiting:
            self._tell_some()

    def close(self) -> None:
        """Tell of all that has ended, and from now on at once."""
        self._is_closed = True
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        self.flush()

    def _await_turn(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # a request that is given up after its loop: no turn will come
            self.flush()
        else:
            self._turn = loop.call_later(self._delay_s, self._take_turn, loop)

    def _take_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turn = None
        self._tell_some()
        if self._waiting:
            self._turn = loop.call_soon(self._take_turn, loop)

    def _tell_some(self) -> None:
        waiting = self._waiting
        tell(self._observers, [waiting.popleft() for _ in range(min(len(waiting), MAX_AT_ONCE))])
