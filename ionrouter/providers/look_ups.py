"""LookUps: names to addresses, asked of the system in threads. No name may hold all of them.

Knows nothing of connections, nor which addresses may be reached.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from ionrouter.addresses import address_of
from ionrouter.process import Threads

MAX_PER_NAME = 2  # threads; the second is for where an answer to the first was lost on its way

AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]  # as getaddrinfo returns them
_Asked = Future[list[AddressInfo]]


class LookUps:
    """Asks for addresses; who asks for what is being looked up shares the answer.

    A name server that is away holds a thread for long. Without a bound by name, requests for one name that
    nobody answers for would keep all others from being looked up.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._threads = Threads(num_threads, name)
        self._lock = threading.Lock()  # look-ups end in their threads
        self._running: dict[tuple[str, int], list[_Asked]] = {}  # oldest first

    async def __call__(self, host: str, port: int) -> Sequence[AddressInfo]:
        """Ask for a name's addresses; raises OSError."""
        if address_of(host) is not None:
            return _ask(host, port)
        loop = asyncio.get_running_loop()
        told: asyncio.Future[list[AddressInfo]] = loop.create_future()

        def tell(done: _Asked) -> None:
            with suppress(RuntimeError):  # the loop has ended before the look-up
                loop.call_soon_threadsafe(_settle, told, done)

        self._asked(host, port).add_done_callback(tell)
        return await told  # who leaves lets the look-up run: others may wait for it

    def _asked(self, host: str, port: int) -> _Asked:
        """Begin a look-up, or take the last that was begun where there are enough."""
        key = (host, port)
        with self._lock:
            running = self._running.get(key, [])
            if len(running) >= MAX_PER_NAME:
                return running[-1]
            asked = self._threads.submit(_ask, host, port)  # not loop.getaddrinfo: its threads cannot be left
            self._running[key] = [*running, asked]
        asked.add_done_callback(partial(self._forget, key))
        return asked

    def _forget(self, key: tuple[str, int], ended: _Asked) -> None:
        with self._lock:
            if left := [asked for asked in self._running[key] if asked is not ended]:
                self._running[key] = left
            else:
                del self._running[key]


def _ask(host: str, port: int) -> list[AddressInfo]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [(family, kind, proto, name, address) for family, kind, proto, name, address in found]


def _settle(told: asyncio.Future[list[AddressInfo]], done: _Asked) -> None:
    if told.done():
        return
    if done.cancelled():
        told.cancel()
    elif (error := done.exception()) is not None:
        told.set_exception(error)
    else:
        told.set_result(done.result())
