"""What one read completes goes on together, and what came before a fault goes on before it. Knows no wire."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from ionrouter.errors import UpstreamError

Read = TypeVar("Read")
Item = TypeVar("Item")


async def in_batches(
    read: Callable[[], Awaitable[Read]], take_in: Callable[[Read, list[Item]], bool]
) -> AsyncGenerator[list[Item], None]:
    """Yield what each read brings; raises UpstreamError after what came before the fault.

    `take_in` adds to the list what its read completes, and tells whether that was the end.
    """
    is_over = False
    while not is_over:
        what = await read()
        batch: list[Item] = []
        try:
            is_over = take_in(what, batch)
        except (UpstreamError, RecursionError):
            if batch:
                yield batch
            raise
        if batch:
            yield batch
