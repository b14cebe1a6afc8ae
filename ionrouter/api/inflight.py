"""The requests being served, so that a stopping server can wait for them and then end them."""

from __future__ import annotations

import asyncio
from typing import Any

from ionrouter.api.run import Run


class InFlight:
    """Requests from their heads on, those of them whose answers run, and a moment at which there are none.

    A request whose body still arrives, or that no model answers, has no run: its task is what can be ended.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any] | None] = set()
        self._running: set[Run] = set()
        self._ended: dict[asyncio.Task[Any] | None, BaseException] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        """How many answers run: what the figures show, which should not count their own reader."""
        return len(self._running)

    @property
    def num_requests(self) -> int:
        return len(self._tasks)

    def enter(self) -> None:
        """Count the request of the current task until it leaves."""
        if not self._tasks:
            self._empty.clear()
        self._tasks.add(asyncio.current_task())

    def leave(self) -> None:
        task = asyncio.current_task()
        self._tasks.discard(task)
        if self._ended:
            self._ended.pop(task, None)
        if not self._tasks:
            self._empty.set()

    def add(self, run: Run) -> None:
        """Note the answer of a request that has entered, until it is discarded."""
        self._running.add(run)

    def discard(self, run: Run) -> None:
        self._running.discard(run)

    async def wait_until_empty(self, timeout_s: float) -> bool:
        """Wait for all to finish; tell whether they did in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def abort_all(self, error: BaseException) -> int:
        """End every request with one error; returns how many there were."""
        for run in self._running:
            run.abort(error)
        for task in self._tasks - {run.task for run in self._running}:
            if task is not None:
                self._ended[task] = error
                task.cancel()
        return len(self._tasks)

    def end_of_current(self) -> BaseException | None:
        """Why the current task was cancelled, if `abort_all` did it; the task may go on then."""
        task = asyncio.current_task()
        error = self._ended.pop(task, None)
        if error is not None and task is not None:
            task.uncancel()
        return error
