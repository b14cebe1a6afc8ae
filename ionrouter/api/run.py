"""Runs one answer's events in the task of whoever serves it: nothing is handed over from task to task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Any

from ionrouter.schema.events import Batch


class Run:
    """Events that a stopping server may end. Leaving the `async with` closes them, however it is left."""

    def __init__(self, batches: AsyncIterator[Batch]) -> None:
        self._batches = batches
        self._error: BaseException | None = None
        self.task: asyncio.Task[Any] | None = None  # who runs it, until it is closed
        self._is_over = False

    async def __aenter__(self) -> AsyncIterator[Batch]:
        self.task = asyncio.current_task()
        return self._batches

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        try:
            if self._error is None:
                await self._batches.aclose()  # type: ignore[attr-defined]  # a generator
            else:  # which hears why, also where it was not what waited
                with suppress(asyncio.CancelledError, StopAsyncIteration):
                    ended = asyncio.CancelledError(self._error)
                    await self._batches.athrow(ended)  # type: ignore[attr-defined]
        finally:
            task, self.task = self.task, None  # each would hold the other
            if self._error is not None and task is not None:
                task.uncancel()  # it was not the task that was meant
        if self._error is not None and isinstance(error, asyncio.CancelledError):
            raise self._error from None

    def abort(self, error: BaseException) -> None:
        """End the events now; whoever waits for them gets `error`. Nothing if they have ended."""
        if self.task is not None and not self._is_over and self._error is None:
            self._error = error
            self.task.cancel(error)
