"""Run something long in a thread that the end of the process does not wait for. Knows not what it runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def in_daemon_thread(work: Callable[[], Result], name: str) -> Result:
    """Await `work()` in a thread of its own.

    asyncio.to_thread would do, but its threads are joined at exit: a server told to stop while it downloads
    must not stay for the rest of the download. A caller that is cancelled leaves the thread to end alone.
    """
    loop = asyncio.get_running_loop()
    # Settling takes the future out: an error holds the frames that wait for it, and must not be held by them,
    # or what a failed load had in hand stays in memory until the next garbage collection.
    waiting: list[asyncio.Future[Result]] = [loop.create_future()]

    def settle(result: Result | None, error: BaseException | None) -> None:
        future = waiting.pop()
        if future.done():  # the caller has left
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            outcome: tuple[Result | None, BaseException | None] = (work(), None)
        except BaseException as error:
            outcome = (None, error)
        try:
            loop.call_soon_threadsafe(settle, *outcome)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return
        finally:
            del outcome  # likewise

    threading.Thread(target=run, name=name, daemon=True).start()
    return await waiting[0]
