"""What stands between the router's events and a handler: batches, silence, errors, back-pressure, endings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from ionrouter.api.pump import MAX_WAITING_EVENTS, Alarm, EventPump, Gathering
from ionrouter.schema.events import Batch, Chunk

CHUNK = Chunk()


async def _counted(number: int, pause_s: float = 0.0) -> AsyncGenerator[Batch, None]:
    for _ in range(number):
        if pause_s:
            await asyncio.sleep(pause_s)
        yield [CHUNK]


async def test_all_that_is_ready_comes_in_one_batch_and_the_end_is_none() -> None:
    async with EventPump(_counted(5)) as pump:
        assert await pump.take(5) == [CHUNK] * 5
        assert await pump.take(5) is None
        assert await pump.take(5) is None


async def test_silence_is_an_empty_batch_again_and_again() -> None:
    async with EventPump(_counted(1, pause_s=0.3)) as pump:
        silences = 0
        while (batch := await pump.take(0.05)) == []:
            silences += 1
        assert batch == [CHUNK]
        assert silences >= 2


async def test_a_shorter_patience_counts_at_once() -> None:
    async with EventPump(_counted(2, pause_s=0.2)) as pump:
        assert await pump.take(600) == [CHUNK]
        assert await pump.take(0.01) == []


async def test_an_error_comes_after_what_came_before_it() -> None:
    async def fails() -> AsyncGenerator[Batch, None]:
        yield [CHUNK]
        raise ValueError("broken")

    async with EventPump(fails()) as pump:
        assert await pump.take() == [CHUNK]
        with pytest.raises(ValueError, match="broken"):
            await pump.take()


async def test_aborting_ends_the_stream_with_the_given_error() -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncGenerator[Batch, None]:
        try:
            yield [CHUNK]
            await asyncio.Event().wait()
        finally:
            closed.set()

    async with EventPump(endless()) as pump:
        assert await pump.take() == [CHUNK]
        pump.abort(ConnectionError("stopping"))
        with pytest.raises(ConnectionError, match="stopping"):
            await pump.take()
        assert closed.is_set()


async def test_leaving_closes_the_events_before_it_returns() -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncGenerator[Batch, None]:
        try:
            while True:
                yield [CHUNK]
                await asyncio.sleep(0.01)
        finally:
            await asyncio.sleep(0.05)  # an upstream that takes a moment to close
            closed.set()

    with pytest.raises(RuntimeError, match="handler"):
        async with EventPump(endless()) as pump:
            await pump.take()
            raise RuntimeError("handler")
    assert closed.is_set()


async def test_a_cancelled_handler_closes_the_events() -> None:
    closed, waiting = asyncio.Event(), asyncio.Event()

    async def endless() -> AsyncGenerator[Batch, None]:
        try:
            waiting.set()
            await asyncio.Event().wait()
            yield [CHUNK]
        finally:
            closed.set()

    async def handler() -> None:
        async with EventPump(endless()) as pump:
            await pump.take(60)

    task = asyncio.create_task(handler())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.is_set()


async def test_an_endpoint_runs_ahead_only_so_far() -> None:
    produced = 0

    async def flood() -> AsyncGenerator[Batch, None]:
        nonlocal produced
        while True:
            produced += 1
            yield [CHUNK]

    async with EventPump(flood()) as pump:
        await asyncio.sleep(0.05)
        assert produced == MAX_WAITING_EVENTS
        assert len(await pump.take() or []) == MAX_WAITING_EVENTS
        await asyncio.sleep(0.05)
        assert produced == 2 * MAX_WAITING_EVENTS


async def test_a_moved_alarm_rings_once_and_late() -> None:
    loop, rung = asyncio.get_running_loop(), list[float]()
    alarm = Alarm(lambda: rung.append(loop.time()))
    started = loop.time()
    for _ in range(10):
        alarm.set(0.1)
        await asyncio.sleep(0.02)
    moved = loop.time()
    await asyncio.sleep(0.3)
    alarm.set(None)
    assert len(rung) == 1
    assert rung[0] >= moved
    assert rung[0] - started >= 0.25
    alarm.close()


async def test_a_whole_answer_is_gathered_in_the_callers_task() -> None:
    tasks: list[object] = []

    async def noting() -> AsyncGenerator[Batch, None]:
        tasks.append(asyncio.current_task())
        yield [CHUNK]
        yield [CHUNK, CHUNK]

    assert await Gathering(noting()).events() == [CHUNK] * 3
    assert tasks == [asyncio.current_task()]


async def _never(closed: asyncio.Event, waiting: asyncio.Event) -> AsyncGenerator[Batch, None]:
    try:
        waiting.set()
        await asyncio.Event().wait()
        yield [CHUNK]
    finally:
        closed.set()


async def test_a_gathering_that_is_ended_raises_why_and_leaves_its_task_alone() -> None:
    closed, waiting = asyncio.Event(), asyncio.Event()
    gathering = Gathering(_never(closed, waiting))

    async def handler() -> str:
        with pytest.raises(ConnectionError, match="stopping"):
            await gathering.events()
        await asyncio.sleep(0)  # a cancellation that was left over would come out here
        return "answered"

    task = asyncio.create_task(handler())
    await waiting.wait()
    gathering.abort(ConnectionError("stopping"))
    gathering.abort(ConnectionError("again"))
    assert await task == "answered"
    assert closed.is_set()


async def test_a_gathering_whose_client_leaves_is_cancelled() -> None:
    closed, waiting = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(Gathering(_never(closed, waiting)).events())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.is_set()
