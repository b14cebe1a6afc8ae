"""What stands between the router's events and a handler: who ends them, and what of that is heard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from ionrouter.alarm import Alarm
from ionrouter.api.run import Run
from ionrouter.schema.events import Batch, Chunk

CHUNK = Chunk()


class Endless:
    """Events of an upstream that goes silent after the first, and takes a moment to close."""

    def __init__(self) -> None:
        self.is_closed = False
        self.has_begun = asyncio.Event()
        self.tasks: set[object] = set()

    async def batches(self) -> AsyncGenerator[Batch, None]:
        self.tasks.add(asyncio.current_task())
        try:
            yield [CHUNK]
            self.has_begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            self.is_closed = True


async def _taken(run: Run) -> list[object]:
    async with run as batches:
        return [event async for batch in batches for event in batch]


async def test_events_run_in_the_callers_task() -> None:
    tasks: list[object] = []

    async def two() -> AsyncGenerator[Batch, None]:
        tasks.append(asyncio.current_task())
        yield [CHUNK]
        yield [CHUNK, CHUNK]

    assert await _taken(Run(two())) == [CHUNK] * 3
    assert tasks == [asyncio.current_task()]


async def test_an_error_of_the_events_comes_out() -> None:
    async def fails() -> AsyncGenerator[Batch, None]:
        yield [CHUNK]
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await _taken(Run(fails()))


async def test_a_run_that_is_ended_closes_its_events_says_why_and_leaves_the_task_alone() -> None:
    endless = Endless()
    run = Run(endless.batches())

    async def handler() -> str:
        with pytest.raises(ConnectionError, match="stopping"):
            await _taken(run)
        assert endless.is_closed
        await asyncio.sleep(0)  # a cancellation that was left over would come out here
        return "answered"

    task = asyncio.create_task(handler())
    await endless.has_begun.wait()
    run.abort(ConnectionError("stopping"))
    run.abort(ConnectionError("again"))
    assert await task == "answered"
    run.abort(ConnectionError("too late"))


@pytest.mark.parametrize("waits_inside", [True, False])
async def test_the_events_hear_why_they_are_ended_wherever_their_reader_waits(waits_inside: bool) -> None:
    error, heard, has_begun = ConnectionError("stopping"), list[object](), asyncio.Event()

    async def events() -> AsyncGenerator[Batch, None]:
        try:
            yield []
            has_begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError as ended:
            heard.extend(ended.args)
            raise

    async def handler(run: Run) -> None:
        async with run as batches:
            await anext(batches)
            if not waits_inside:
                has_begun.set()
                await asyncio.Event().wait()
            await anext(batches)

    run = Run(events())
    task = asyncio.create_task(handler(run))
    await has_begun.wait()
    run.abort(error)
    with pytest.raises(ConnectionError, match="stopping"):
        await task
    assert heard == [error]


async def test_leaving_closes_the_events_before_it_returns() -> None:
    endless = Endless()
    with pytest.raises(RuntimeError, match="handler"):
        async with Run(endless.batches()) as batches:
            await anext(batches)
            raise RuntimeError("handler")
    assert endless.is_closed


async def test_a_cancelled_handler_closes_the_events() -> None:
    endless = Endless()
    task = asyncio.create_task(_taken(Run(endless.batches())))
    await endless.has_begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert endless.is_closed


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
