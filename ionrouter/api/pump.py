"""Runs one answer's events in a task of its own, so that the handler can wait for them with a deadline.

The task owns the event iterator and closes it; leaving the `async with` ends both, however it is left.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
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
        self._woken = asyncio.Event()  # something waits, the stream has ended, or silence lasted
        self._room = asyncio.Event()
        self._alarm = Alarm(self._woken.set)
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
        self._alarm.close()
        self._task.cancel()
        await asyncio.wait({self._task})

    async def take(self, timeout_s: float | None = None) -> list[Event] | None:
        """Wait for events and take all: [] after `timeout_s` of silence, None after the last one.

        Raises what ended the stream early, after everything before it was taken.
        """
        if not self._waiting and not self._has_ended:
            self._woken.clear()
            self._alarm.set(timeout_s)
            await self._woken.wait()
            self._alarm.set(None)
        if self._waiting:
            return self._take_waiting()
        if not self._has_ended:
            return []
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
            self._woken.set()

    async def _put(self, event: Event) -> None:
        self._waiting.append(event)
        self._woken.set()
        while len(self._waiting) >= MAX_WAITING_EVENTS:
            self._room.clear()
            await self._room.wait()


class Alarm:
    """A deadline that is moved on with every token: one timer a stream, re-armed only when it rings early."""

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, delay_s: float | None) -> None:
        """Ring `delay_s` from now, instead of whenever was said before; None: not at all."""
        if delay_s is None:
            self._deadline = None
            return
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + delay_s
        if self._timer is not None and self._timer.when() > self._deadline:
            self.close()
        if self._timer is None:
            self._timer = loop.call_at(self._deadline, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._deadline is None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._deadline:
            self._timer = loop.call_at(self._deadline, self._look)
        else:
            self._ring()
