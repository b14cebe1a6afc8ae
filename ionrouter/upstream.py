"""An upstream's events under deadlines, and the one retry layer: connections refused before any byte.

Knows nothing of requests, prices or health: what may be waited for, and whether to reconnect, is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import structlog
from tenacity import AsyncRetrying, RetryCallState, stop_after_attempt

from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.schema.events import ProviderEvent

log = structlog.get_logger(__name__)

MAX_CONNECTIONS = 2


class Work(Protocol):
    """What is to be done upstream, and its rules."""

    def open(self) -> AsyncIterator[ProviderEvent]:
        """Start the work."""
        ...

    def limit(self) -> tuple[float, str]:
        """Seconds that the next event may take, and what is waited for."""
        ...

    def may_reconnect(self, error: BaseException) -> bool:
        """Ask whether another connection may be tried; claims it."""
        ...

    def jitter_s(self) -> float:
        """Seconds to wait before reconnecting."""
        ...


class Upstream:
    """An opened upstream: `next` is the next event within its deadline, None at the end."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._events: AsyncIterator[ProviderEvent] | None = None
        self._first: ProviderEvent | None = None
        self._has_first = False

    async def open(self) -> None:
        """Connect and wait for the first event; a refused connection is tried once more."""
        retrying = AsyncRetrying(
            stop=stop_after_attempt(MAX_CONNECTIONS),
            wait=self._wait_s,
            retry=self._may_reconnect,
            reraise=True,
        )
        await retrying(self._connect)

    def _may_reconnect(self, state: RetryCallState) -> bool:
        """Ask for another connection, but not after the last: asking claims it from a budget."""
        error = state.outcome.exception() if state.outcome is not None else None
        is_last = state.attempt_number >= MAX_CONNECTIONS
        return error is not None and not is_last and self._work.may_reconnect(error)

    def _wait_s(self, _state: RetryCallState) -> float:
        return self._work.jitter_s()

    async def _connect(self) -> None:
        await self.close()
        self._events = self._work.open()
        self._first, self._has_first = await self._timed(self._events), True

    async def next(self) -> ProviderEvent | None:
        """Wait for the next event; UpstreamError `timeout` when it does not come."""
        if self._has_first:
            self._has_first = False
            return self._first
        assert self._events is not None  # opened
        return await self._timed(self._events)

    async def _timed(self, events: AsyncIterator[ProviderEvent]) -> ProviderEvent | None:
        limit_s, awaited = self._work.limit()
        cancelled_before = _num_cancellations()
        scope = asyncio.timeout(max(limit_s, 0.0))
        try:
            async with scope:
                return await anext(events)
        except StopAsyncIteration:
            return None
        except Exception as error:
            # What a client raises while it is being cancelled must not hide why it was.
            if scope.expired():
                raise _timed_out(f"{awaited} did not come in time") from error
            if _num_cancellations() > cancelled_before:
                raise asyncio.CancelledError from error
            if isinstance(error, TimeoutError):
                raise _timed_out(f"timed out: {error}") from error
            raise

    async def close(self) -> None:
        """Close the upstream; what it raises then changes nothing for the client."""
        events, self._events = self._events, None
        aclose = getattr(events, "aclose", None)
        if aclose is None:
            return
        try:
            await aclose()
        except Exception as error:
            log.debug("upstream_close_failed", error=repr(error)[:300])


def _num_cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


def _timed_out(what: str) -> UpstreamError:
    return UpstreamError(FailureClass.TRANSIENT, what, code="timeout", error_type="timeout")


@asynccontextmanager
async def opened(work: Work) -> AsyncIterator[Upstream]:
    """Open, and close whatever happens."""
    upstream = Upstream(work)
    try:
        await upstream.open()
        yield upstream
    finally:
        await upstream.close()
