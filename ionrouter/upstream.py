"""An upstream's events under deadlines, and the one retry layer: connections refused before any byte.

Knows nothing of requests, prices or health: what may be waited for, and whether to reconnect, is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Protocol, Self, cast

import structlog
from tenacity import AsyncRetrying, RetryCallState, stop_after_attempt

from ionrouter.alarm import Deadlines
from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.schema.events import Chunk, Lane, ProviderBatch, ProviderEvent, Taker

log = structlog.get_logger(__name__)

MAX_CONNECTIONS = 2  # to one endpoint, for one attempt


class Work(Taker, Protocol):
    """What is to be done upstream, and its rules; it may take at once what comes of it."""

    def open(self, taker: Taker) -> AsyncIterator[ProviderEvent | ProviderBatch]:
        """Start the work; what comes together may come as one list, or be offered to `taker` before."""
        ...

    def whole(self) -> Awaitable[ProviderBatch] | None:
        """Start work whose events all come at once; None: `open` it."""
        ...

    def limit(self) -> tuple[float, str]:
        """Seconds that the next event may take, and what is waited for."""
        ...

    def left(self) -> tuple[float, str]:
        """The same less what has been waited since a lane took something; 0 where none did."""
        ...

    def may_reconnect(self, error: BaseException) -> bool:
        """Ask whether another connection may be tried; claims it."""
        ...

    def jitter_s(self) -> float:
        """Seconds to wait before reconnecting."""
        ...


class Upstream:
    """An opened upstream: `next` is what came together, within its deadline; None at the end."""

    def __init__(self, work: Work, deadlines: Deadlines) -> None:
        self._work, self._deadlines = work, deadlines
        self.deadline = 0.0  # of the loop's clock; counts while something is awaited
        self._batches: AsyncIterator[ProviderEvent | ProviderBatch] | None = None
        self._first: ProviderBatch | None = None
        self._has_first = False
        self._loop = asyncio.get_running_loop()  # asked for once: it is a system call in Python 3.11
        self._task: asyncio.Task[Any] | None = None  # that waits now
        self._has_rung, self._awaited = False, ""

    async def __aenter__(self) -> Self:
        """Connect and wait for the first event; a refused connection is tried once more."""
        try:
            try:
                self._first = await self._timed(self._begin())
            except UpstreamError as error:
                await self._reconnect(error)
        except BaseException:
            await self._close()
            raise
        self._has_first = True
        return self

    async def _reconnect(self, failed: UpstreamError) -> None:
        """Try again as the work allows. Only after a failure: a retrier would cost every call its time."""
        failures = [failed]

        async def connect() -> None:
            if failures:
                raise failures.pop()  # the first connection's, which is over
            await self._close()
            self._first = await self._timed(self._begin())

        retrying = AsyncRetrying(
            stop=stop_after_attempt(MAX_CONNECTIONS),
            wait=lambda _: self._work.jitter_s(),
            retry=self._may_reconnect,
            reraise=True,
        )
        await retrying(connect)

    def _may_reconnect(self, state: RetryCallState) -> bool:
        """Ask for another connection, but not after the last: asking claims it from a budget."""
        error = state.outcome.exception() if state.outcome is not None else None
        is_last = state.attempt_number >= MAX_CONNECTIONS
        return error is not None and not is_last and self._work.may_reconnect(error)

    async def __aexit__(self, *_: object) -> None:
        if self._batches is not None:
            await self._close()

    def _begin(self) -> Awaitable[ProviderEvent | ProviderBatch]:
        if (whole := self._work.whole()) is not None:
            return whole
        self._batches = self._work.open(self)
        return anext(self._batches)

    async def next(self) -> ProviderBatch | None:
        """Wait for the next events; UpstreamError `timeout` when they do not come."""
        if self._has_first:
            self._has_first = False
            return self._first
        if self._batches is None:
            return None  # all of it came first
        return await self._timed(anext(self._batches))

    async def _timed(self, coming: Awaitable[ProviderEvent | ProviderBatch]) -> ProviderBatch | None:
        self._task = task = asyncio.current_task(self._loop)
        assert task is not None
        cancelled_before, self._has_rung = task.cancelling(), False
        self._give_time()
        try:
            item = await coming
        except StopAsyncIteration:
            return None
        except BaseException as error:
            # What a client raises while it is being cancelled must not hide why it was.
            is_cancelled = self._cancelled_by_others(task) > cancelled_before
            if self._has_rung and not (is_cancelled and isinstance(error, asyncio.CancelledError)):
                raise _timed_out(f"{self._awaited} did not come in time") from error
            if is_cancelled and isinstance(error, Exception):
                raise asyncio.CancelledError from error
            if isinstance(error, TimeoutError):
                raise _timed_out(f"timed out: {error}") from error
            raise
        finally:
            self._deadlines.clear(self)
        if self._has_rung:
            task.uncancel()  # it came at the very last moment
        return item if isinstance(item, list) else [cast(ProviderEvent, item)]

    def take(self, batch: ProviderBatch) -> bool:
        """Let the work take it at once; whoever waits in `next` then waits for another, as long again."""
        if not self._work.take(batch):
            return False
        self._give_time()
        return True

    def lane(self, pattern: Chunk) -> Lane | None:
        """The work's: what it takes moves the deadline when that has come, not each time."""
        return self._work.lane(pattern)

    def _give_time(self) -> None:
        limit_s, self._awaited = self._work.limit()
        self._deadlines.set(self, self._loop, max(limit_s, 0.0))

    def _cancelled_by_others(self, task: asyncio.Task[Any]) -> int:
        return task.uncancel() if self._has_rung else task.cancelling()

    def ring(self) -> None:
        """End what is awaited, if its time is up."""
        left_s, awaited = self._work.left()
        if left_s > 0:
            self._awaited = awaited
            self._deadlines.set(self, self._loop, left_s)
        elif self._task is not None:
            self._has_rung = True
            self._task.cancel()

    async def _close(self) -> None:
        """Close the upstream; what it raises then changes nothing for the client."""
        batches, self._batches = self._batches, None
        aclose = getattr(batches, "aclose", None)
        if aclose is None:
            return
        try:
            await aclose()
        except Exception as error:
            log.debug("upstream_close_failed", error=repr(error)[:300])


def _timed_out(what: str) -> UpstreamError:
    return UpstreamError(FailureClass.TRANSIENT, what, code="timeout", error_type="timeout")
