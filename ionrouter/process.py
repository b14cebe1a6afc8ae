"""What a server asks of its own process: a loop to run in, and that SIGHUP does not end it."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
from collections.abc import Callable, Coroutine
from typing import Any


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a loop of its own, and close that."""
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(main)
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # functions are taken away before the process is over


def ignore_hangups() -> None:
    """Let SIGHUP do nothing, for as long as there is nothing to reload; by itself it ends a process.

    A function and not SIG_IGN, which the processes that we start would inherit.
    """
    signal.signal(signal.SIGHUP, lambda *_: None)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where there is one: a third less work a request."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop
