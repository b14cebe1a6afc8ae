"""Calls what recurses as deep as its input says, on a stack that is deep enough. Knows not what it calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")

# Of address space; memory is taken as the stack is used. On a thread's usual 8 MiB llguidance follows fewer
# than a thousand definitions that name one another, and then the process is gone.
STACK_BYTES = 256 << 20

_starting = threading.Lock()  # the size of new threads' stacks is the whole process's


def on_deep_stack(work: Callable[[], Result], name: str) -> Result:
    """Wait for `work()` in a thread with a deep stack. The end of the process does not wait for it."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    with _starting:
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    return future.result()
