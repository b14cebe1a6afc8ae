"""Runs one answer's events: in the handler's task, or in one of its own, to be waited for with a deadline.

That task owns the event iterator and closes it; leaving the `async with` ends both, however it is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from types import TracebackType
from typing import Protocol, Self

from ionrouter.alarm import Alarm
from ionrouter.schema.events import Batch, Event, TextRun

# How far an endpoint may run ahead of a slow client; then it is no longer read, which slows it down too.
MAX_WAITING_EVENTS = 256


class Running(Protocol):
    """An answer on its way, which a stopping server may end."""

    def abort(self, error: BaseException) -> None:
        """End it now with `error`, unless it has ended."""
        ...


class Gathering:
    """Runs one answer to its end in the caller's own task: for who has nothing to do meanwhile."""

    def __init__(self, batches: AsyncIterator[Batch]) -> None:
        self._batches = batches
        self._error: BaseException | None = None
        self._task: asyncio.Task[object] | None = None  # while it runs

    async def events(self) -> list[Event | TextRun]:
        """All events; raises what ended them early. May be called once."""
        gathered: list[Event | TextRun] = []
        self._task = task = asyncio.current_task()
        assert task is not None
        try:
            async with aclosing(self._batches) as batches:  # type: ignore[type-var]
                async for batch in batches:
                    gathered += batch
        except asyncio.CancelledError:
            if self._error is None:
                raise
            task.uncancel()  # it was not the caller that was meant
            raise self._error from None
        finally:
            self._task = None
        return gathered

    def abort(self, error: BaseException) -> None:
        if self._task is not None and self._error is None:
            self._error = error
            self._task.cancel()


class EventPump:
    """A bounded queue of events. `take` gives all that are waiting, so that they leave in one write."""

    def __init__(self, batches: AsyncIterator[Batch]) -> None:
        self._batches = batches
        self._waiting: list[Event | TextRun] = []
        self._num_waiting = 0  # events, those of runs counted one by one
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
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})

    async def take(self, timeout_s: float | None = None) -> list[Event | TextRun] | None:
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

    def _take_waiting(self) -> list[Event | TextRun]:
        batch, self._waiting, self._num_waiting = self._waiting, [], 0
        self._room.set()
        return batch

    async def _run(self) -> None:
        try:
            async with aclosing(self._batches) as batches:  # type: ignore[type-var]
                async for batch in batches:
                    self._waiting += batch
                    self._num_waiting += sum(map(_num_events, batch))
                    self._woken.set()
                    while self._num_waiting >= MAX_WAITING_EVENTS:
                        self._room.clear()
                        await self._room.wait()
        except BaseException as error:
            self._error = self._error or error
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
                raise
        finally:
            self._has_ended = True
            self._woken.set()


def _num_events(event: Event | TextRun) -> int:
    return len(event.texts) if isinstance(event, TextRun) else 1
