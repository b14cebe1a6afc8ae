"""Runs one answer's events in a task of its own, so that the handler can wait for them with a deadline.

The task owns the event iterator and closes it; leaving the `async with` ends both, however it is left.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import aclosing
from types import TracebackType
from typing import Self

from ionrouter.schema.events import Event

# How far an endpoint may run ahead of a slow client; then it is no longer read, which slows it down too.
MAX_WAITING_EVENTS = 256


class EventPump:
    """A bounded queue of events. `take` gives all that are waiting, so that they leave in one write."""

    def __init__(self, events: AsyncIterator[Event]) -> None:
        self._events = events
        self._waiting: deque[Event] = deque()
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._error: BaseException | None = None
        self._has_ended = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="event-pump")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})

    async def take(self, timeout_s: float | None = None) -> list[Event] | None:
        """Wait for events and take all: [] after `timeout_s` of silence, None after the last one.

        Raises what ended the stream early, after everything before it was taken.
        """
        if not self._waiting and not self._has_ended:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        if self._waiting:
            return self._take_waiting()
        if self._error is not None:
            raise self._error
        return None

    def abort(self, error: BaseException) -> None:
        """End the stream now; the next `take` that finds nothing waiting raises `error`."""
        if self._task is not None and not self._has_ended:
            self._error = error
            self._task.cancel()

    def _take_waiting(self) -> list[Event]:
        batch = list(self._waiting)
        self._waiting.clear()
        if not self._has_ended:
            self._arrived.clear()
        self._room.set()
        return batch

    async def _run(self) -> None:
        try:
            async with aclosing(self._events) as events:  # type: ignore[type-var]
                async for event in events:
                    await self._put(event)
        except BaseException as error:
            self._error = self._error or error
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
                raise
        finally:
            self._has_ended = True
            self._arrived.set()

    async def _put(self, event: Event) -> None:
        self._waiting.append(event)
        self._arrived.set()
        while len(self._waiting) >= MAX_WAITING_EVENTS:
            self._room.clear()
            await self._room.wait()
