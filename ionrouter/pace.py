"""Long work on the event loop that lets others have their turn."""

from __future__ import annotations

import asyncio
import time

PIECE_S = 0.002


class Pace:
    """Asked after each step of the work; waits where its turn has taken PIECE_S."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = time.perf_counter() + PIECE_S

    async def keep(self) -> None:
        if time.perf_counter() > self._until:
            await asyncio.sleep(0)
            self._until = time.perf_counter() + PIECE_S
