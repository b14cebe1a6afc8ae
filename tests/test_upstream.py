"""An upstream under deadlines: reconnecting, timing out, closing, cancelling."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from ionrouter.alarm import Deadlines
from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.schema.events import ChoiceDelta, Chunk, Lane, ProviderBatch, ProviderEvent, Taker
from ionrouter.upstream import Upstream

PIECE = Chunk((ChoiceDelta(0, {"content": "x"}),))
REFUSED = UpstreamError(FailureClass.TRANSIENT, "refused", code="connect_error")


@dataclass
class Work:
    """Each opening plays the next step: an exception to raise, or seconds to wait before the only event."""

    steps: list[Any]
    limit_s: float = 10.0
    closed: int = 0
    events: list[AsyncIterator[ProviderEvent]] = field(default_factory=list)
    on_close: Exception | None = None
    num_asked: int = 0

    async def _play(self, step: Any) -> AsyncIterator[ProviderEvent]:
        try:
            if isinstance(step, Exception):
                raise step
            await asyncio.sleep(step)
            yield PIECE
        finally:
            self.closed += 1
            if self.on_close is not None:
                raise self.on_close

    def open(self, taker: Taker) -> AsyncIterator[ProviderEvent]:
        self.events.append(self._play(self.steps[len(self.events)]))
        return self.events[-1]

    def take(self, batch: ProviderBatch) -> bool:
        return False

    def lane(self, pattern: Chunk) -> Lane | None:
        return None

    def whole(self) -> Any:
        return None

    def limit(self) -> tuple[float, str]:
        return self.limit_s, "the answer"

    def left(self) -> tuple[float, str]:
        return 0.0, ""

    def may_reconnect(self, error: BaseException) -> bool:
        self.num_asked += 1
        return error is REFUSED

    def jitter_s(self) -> float:
        return 0.0


async def read(work: Work) -> list[ProviderEvent]:
    got = []
    async with Upstream(work, Deadlines()) as upstream:
        while (batch := await upstream.next()) is not None:
            got += batch
    return got


async def test_events_come_through_and_the_upstream_is_closed() -> None:
    work = Work([0])
    assert await read(work) == [PIECE] and work.closed == 1


@dataclass
class Taking(Work):
    """Offers a batch every 50 ms before it yields, and takes all of them."""

    num_offered: int = 0
    num_taken: int = 0
    taken_at: float = 0.0  # by a lane

    def open(self, taker: Taker) -> AsyncIterator[ProviderEvent]:
        return self._offered(taker)

    async def _offered(self, taker: Taker) -> AsyncIterator[ProviderEvent]:
        yield PIECE
        for number in range(self.num_offered):
            await asyncio.sleep(0.05)
            lane = taker.lane(PIECE) if number % 2 else None
            assert lane("x", b'"x"') if lane is not None else taker.take([PIECE])
        await asyncio.sleep(self.steps[0])
        yield PIECE

    def take(self, batch: ProviderBatch) -> bool:
        self.num_taken += len(batch)
        return True

    def lane(self, pattern: Chunk) -> Lane | None:
        def take(text: str, literal: bytes) -> bool:
            self.taken_at = time.monotonic()
            return self.take([pattern])

        return take

    def left(self) -> tuple[float, str]:
        return self.limit_s - (time.monotonic() - self.taken_at), f"piece {self.num_taken}"

    def limit(self) -> tuple[float, str]:
        return self.limit_s, f"piece {self.num_taken}"


async def test_what_is_taken_moves_the_deadline() -> None:
    work = Taking([0], limit_s=0.2, num_offered=10)
    assert await read(work) == [PIECE, PIECE] and work.num_taken == 10


async def test_silence_after_what_was_taken_is_as_long_as_any_other() -> None:
    work, started_at = Taking([30], limit_s=0.2, num_offered=4), time.monotonic()
    with pytest.raises(UpstreamError, match="piece 4 did not come in time"):
        await read(work)
    assert 0.4 <= time.monotonic() - started_at < 10


async def test_a_refused_connection_is_opened_once_more_and_no_more() -> None:
    work = Work([REFUSED, 0])
    assert await read(work) == [PIECE] and len(work.events) == 2
    hopeless = Work([REFUSED, REFUSED, 0])
    with pytest.raises(UpstreamError, match=r"^refused$"):  # G58: the cause itself, no wrapper
        await read(hopeless)
    assert len(hopeless.events) == 2 == hopeless.closed
    assert hopeless.num_asked == 1  # after the last one nothing is claimed from the budget


async def test_no_event_in_time_says_what_was_awaited() -> None:
    work = Work([60], limit_s=0.05)
    async with asyncio.timeout(20):
        with pytest.raises(UpstreamError, match="the answer did not come in time") as caught:
            await read(work)
    assert (caught.value.failure, caught.value.code) == (FailureClass.TRANSIENT, "timeout")
    assert work.closed == 1


async def test_a_time_that_is_up_already_still_ends_in_a_timeout() -> None:
    with pytest.raises(UpstreamError, match="in time"):
        await read(Work([60], limit_s=-1.0))


async def test_an_upstreams_own_timeout_is_told_apart() -> None:
    with pytest.raises(UpstreamError, match="timed out: pool"):
        await read(Work([TimeoutError("pool")]))


@pytest.mark.parametrize("on_close", [None, OSError("cannot close"), TimeoutError("closing")])
async def test_being_cancelled_stays_being_cancelled_whatever_the_upstream_raises(
    on_close: Exception | None,
) -> None:
    work = Work([60], on_close=on_close)
    task = asyncio.create_task(read(work))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.closed == 1


async def test_a_timeout_stays_one_whatever_the_upstream_raises() -> None:
    with pytest.raises(UpstreamError, match="in time"):
        await read(Work([60], limit_s=0.05, on_close=OSError("cannot close")))


async def test_what_comes_at_once_needs_no_iterator_and_has_the_same_deadline() -> None:
    class AtOnce(Work):
        async def _answer(self) -> list[ProviderEvent]:
            await asyncio.sleep(self.steps[0])
            return [PIECE]

        def whole(self) -> Any:
            return self._answer()

    work = AtOnce([0])
    assert await read(work) == [PIECE] and work.events == []
    with pytest.raises(UpstreamError, match="the answer did not come in time"):
        await read(AtOnce([60], limit_s=0.01))
