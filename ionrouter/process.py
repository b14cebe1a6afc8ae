"""What a server asks of its process: a loop, files enough, threads that cannot hold it, no end by SIGHUP."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakSet

import structlog

_log = structlog.get_logger(__name__)

MAX_FILES = 65536  # the client's and the upstream's socket of more requests than one process serves
CLOSE_TIMEOUT_S = 2.0  # for threads whose work nobody awaits any more


class Threads(ThreadPoolExecutor):
    """Threads whose shutdown waits so long and no longer: what they ask may never answer."""

    def __init__(self, num: int | None, name: str, *, close_timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        super().__init__(num, name)
        self._close_timeout_s = close_timeout_s
        _made.add(self)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=cancel_futures)
        if wait:
            self.close()

    def close(self) -> bool:
        """Begin nothing more and wait for what runs; tell whether it ended in time."""
        super().shutdown(wait=False, cancel_futures=True)
        waiting = threading.Thread(target=super().shutdown, name="threads-end", daemon=True)
        waiting.start()
        waiting.join(self._close_timeout_s)
        return not waiting.is_alive()


_made: WeakSet[Threads] = WeakSet()


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a loop of its own, and close that."""
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_with_threads(main))
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # functions are taken away before the process is over


async def _with_threads(main: Coroutine[Any, Any, None]) -> None:
    asyncio.get_running_loop().set_default_executor(Threads(None, "asyncio"))
    await main


def end_if_held(code: int) -> None:
    """End the process here and now, if a thread still runs that its end would wait for.

    A look-up of a name or a question to a database may hang for minutes. For when everything is closed.
    """
    for threads in list(_made):
        threads.shutdown(wait=False, cancel_futures=True)
    this, deadline = threading.current_thread(), time.monotonic() + CLOSE_TIMEOUT_S
    others = [thread for thread in threading.enumerate() if not (thread is this or thread.daemon)]
    for thread in others:
        thread.join(max(0.0, deadline - time.monotonic()))
    if held := [thread.name for thread in others if thread.is_alive()]:
        _log.warning("threads_abandoned", threads=held)  # a warning leaves at once, with what waits
        os._exit(code)


def ignore_hangups() -> None:
    """Let SIGHUP do nothing, for as long as there is nothing to reload; by itself it ends a process.

    A function and not SIG_IGN, which the processes that we start would inherit.
    """
    signal.signal(signal.SIGHUP, lambda *_: None)


def raise_file_limit() -> None:
    """Let this process open as many files as the system lets it ask for; it begins with 1,024 on most.

    A request takes two, and where none is left every upstream looks broken. Also for processes started later.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:  # macOS allows less than it says
        _log.debug("file_limit_kept", limit=soft, error=str(error))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where there is one: a third less work a request."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop
