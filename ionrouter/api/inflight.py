"""The answers being served, so that a stopping server can wait for them and then end them."""

from __future__ import annotations

import asyncio

from ionrouter.api.run import Run


class InFlight:
    """A set of running answers with a moment at which it is empty."""

    def __init__(self) -> None:
        self._running: set[Run] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._running)

    def add(self, run: Run) -> None:
        """Count an answer until it is discarded."""
        if not self._running:
            self._empty.clear()
        self._running.add(run)

    def discard(self, run: Run) -> None:
        self._running.discard(run)
        if not self._running:
            self._empty.set()

    async def wait_until_empty(self, timeout_s: float) -> bool:
        """Wait for all to finish; tell whether they did in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def abort_all(self, error: BaseException) -> int:
        """End every answer with one error; returns how many there were."""
        for run in list(self._running):
            run.abort(error)
        return len(self._running)
