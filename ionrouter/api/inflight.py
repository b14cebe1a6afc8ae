"""The answers being served, so that a stopping server can wait for them and then end them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from ionrouter.api.pump import EventPump


class InFlight:
    """A set of pumps with a moment at which it is empty."""

    def __init__(self) -> None:
        self._pumps: set[EventPump] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._pumps)

    @contextmanager
    def track(self, pump: EventPump) -> Iterator[None]:
        self._pumps.add(pump)
        self._empty.clear()
        try:
            yield
        finally:
            self._pumps.discard(pump)
            if not self._pumps:
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
        for pump in list(self._pumps):
            pump.abort(error)
        return len(self._pumps)
