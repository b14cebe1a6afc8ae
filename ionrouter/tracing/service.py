"""Tracing for the life of the process: loads the SDK after listening, begins traces, flushes at the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from ionrouter.tracing.attributes import Arrival
from ionrouter.tracing.spans import RequestTrace

if TYPE_CHECKING:  # imports OpenTelemetry
    from ionrouter.tracing.sdk import Sdk

log = structlog.get_logger(__name__)

FLUSH_S = 3.0  # at the end, for what the collector has not got yet


class Tracing:
    """Made where traces are configured. Until `start` is through, requests go untraced."""

    def __init__(self, collector: str, count: Callable[[str, int], None]) -> None:
        self._collector, self._count = collector, count
        self._sdk: Sdk | None = None

    async def start(self) -> None:
        """Load the SDK in a thread; a fault of its configuration is logged, and nothing is traced."""
        try:
            self._sdk = await asyncio.to_thread(_load, self._count)
        except Exception as error:
            log.error("traces_unavailable", error=f"{type(error).__name__}: {error}"[:300])
        else:
            log.info("traces_started", collector=self._collector)

    def request(self, arrival: Arrival) -> RequestTrace | None:
        """Begin a request's trace."""
        return None if self._sdk is None else RequestTrace(self._sdk, arrival)

    async def close(self) -> None:
        """Send what waits, for FLUSH_S at most. A collector that hangs holds no stop up."""
        sdk, self._sdk = self._sdk, None
        if sdk is None:
            return
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            try:
                sdk.shut_down()
            finally:
                with suppress(RuntimeError):  # the loop has not waited so long
                    loop.call_soon_threadsafe(done.set)

        # A daemon: the process may end while it still waits for a socket.
        threading.Thread(target=flush, name="flush-traces", daemon=True).start()
        try:
            async with asyncio.timeout(FLUSH_S):
                await done.wait()
        except TimeoutError:
            sdk.abandon()
            log.warning("traces_abandoned", collector=self._collector)


def _load(count: Callable[[str, int], None]) -> Sdk:
    from ionrouter.tracing.sdk import Sdk

    return Sdk(count)
