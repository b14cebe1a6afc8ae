"""Several asynchronous streams as one, each item with its stream's number. Knows nothing of the items."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


async def interleave(streams: Sequence[AsyncIterator[Item]]) -> AsyncGenerator[tuple[int, Item]]:
    """Yield (stream, item) as items come; ends with the last stream. Closing it closes every stream."""
    if len(streams) == 1:  # without tasks: they would cost more than the rest of an item's way
        try:
            async for only in streams[0]:
                yield 0, only
        finally:
            await _close(streams[0])
        return
    waiting = {asyncio.ensure_future(_next(stream)): i for i, stream in enumerate(streams)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: waiting[task]):
                item = task.result()
                i = waiting.pop(task)
                if item is not None:
                    waiting[asyncio.ensure_future(_next(streams[i]))] = i
                    yield i, item
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for stream in streams:
            await _close(stream)


async def _close(stream: AsyncIterator[Item]) -> None:
    if isinstance(stream, AsyncGenerator):
        await stream.aclose()


async def _next(stream: AsyncIterator[Item]) -> Item | None:
    return await anext(stream, None)
