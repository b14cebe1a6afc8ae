"""Answer: what is being read from an upstream. Its bytes wait here, within bounds, until somebody takes them.

Knows nothing of sockets or of HTTP's framing: a connection tells it status, headers, bytes and the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from ionrouter.inflate import InflateFault, Inflater, Unfinished, inflater_for
from ionrouter.providers.http_faults import Cut, HttpFault, Malformed

# Taken at once, with the rest of the read in which it ends: what is made of it waits with it where a client
# reads slowly.
PIECE_BYTES = 32 * 1024
HIGH_WATER_BYTES = 32 * 1024  # unread bytes at which reading pauses, and TCP carries the pressure upstream
MAX_REFUSAL_BYTES = 64 * 1024
MAX_INFLATED_BYTES = 256 * 1024 * 1024  # of one body
REFUSAL_S = 5.0  # how long a refusal may take to say why


class Carrier(Protocol):
    """The connection that an answer comes by."""

    loop: asyncio.AbstractEventLoop
    is_paused: bool

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def abort(self) -> None: ...

    def let_go(self, answer: Answer, drain_s: float) -> None: ...


class Answer:
    """One response: status and headers (names in lower case), then its body in the pieces that were read."""

    __slots__ = (
        "_connection",
        "_fault",
        "_inflater",
        "_num_held",
        "_pieces",
        "_taker",
        "_waiter",
        "headers",
        "is_whole",
        "queue_s",
        "status",
    )

    def __init__(self, connection: Carrier) -> None:
        self.status = 0  # 0: the head has not come
        self.headers: dict[str, str] = {}
        self.is_whole = False
        self.queue_s = 0.0  # that its request waited for a connection to be allowed; set by the pool
        self._connection: Carrier | None = connection  # None: given back or closed
        self._pieces: list[bytes] = []
        self._num_held = 0
        self._fault: HttpFault | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._taker: Callable[[bytes], bool] | None = None  # gets what comes; None: whoever waits is woken
        self._inflater: Inflater | None = None

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def begun(self) -> Answer:
        """Wait for status and headers; raises HttpFault. Closed unless they came."""
        try:
            while self.status == 0:
                if self._fault is not None:
                    raise self._fault
                await self._more()
        except BaseException:
            self.close()
            raise
        return self

    async def peek(self) -> bytes:
        """Wait for bytes and leave them there; b"" where the end or a fault comes first."""
        while not (self._pieces or self.is_whole or self._fault is not None):
            await self._more()
        return self._pieces[0] if self._pieces else b""

    async def readany(self) -> bytes:
        """Wait for bytes and take them, about PIECE_BYTES at most; b"" at the end.

        What came before a cut comes first.
        """
        while (data := self._there()) is None:
            await self._more()
        return data

    async def pour(self, take: Callable[[bytes], bool]) -> None:
        """Hand all bytes to `take` as they come, b"" at the end, until it answers False.

        It is called where they are read: a task that waits here is not woken for what is taken.
        """
        while True:
            if (data := self._there()) is not None:
                if not take(data) or not data:
                    return
                continue
            self._taker = take
            try:
                await self._more()
            finally:
                has_enough, self._taker = self._taker is None, None
            if has_enough:
                return

    async def read(self, max_bytes: int) -> bytes:
        """Read to the end or to about `max_bytes`, whichever is first.

        What came before a fault, or before nobody waited any longer, is `unread` then.
        """
        if self.is_whole:  # it came with its head, as most answers do
            return self._take_all() if self._pieces else b""
        parts = bytearray()
        try:
            while len(parts) < max_bytes and (data := await self.readany()):
                parts += data
        except BaseException:
            self._pieces.insert(0, bytes(parts))
            self._num_held += len(parts)
            raise
        return bytes(parts)

    def unread(self) -> bytes:
        """What has come and was not taken."""
        return b"".join(self._pieces)

    async def read_refusal(self, within_s: float = REFUSAL_S) -> bytes:
        """Read why a request was refused, as far as it is told: a fault or `within_s` is its end, too."""
        told = bytearray()
        with suppress(HttpFault, TimeoutError):
            async with asyncio.timeout(None if self.is_whole else within_s):
                while len(told) < MAX_REFUSAL_BYTES and (data := await self.readany()):
                    told += data
        return bytes(told)

    def release(self, drain_s: float) -> None:
        """Give the connection back: at once if the body has ended, else if it does within `drain_s`."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            self._pieces.clear()
            connection.let_go(self, drain_s)

    def close(self) -> None:
        """Close the connection now, whatever is under way; nothing if it was given back."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.abort()

    # Called by the connection.

    def begin(self, status: int, headers: dict[str, str]) -> None:
        self.headers, self.status = headers, status
        if (coding := headers.get("content-encoding")) is not None:
            try:
                self._inflater = inflater_for(coding, MAX_INFLATED_BYTES)
            except InflateFault as fault:
                self.fail(_malformed(fault))  # of its body: the status of a refusal says enough

    def feed(self, data: bytes) -> None:
        connection = self._connection
        if connection is None or self._fault is not None:
            return  # given back, so only the end matters; or what nobody can read
        if self._inflater is None:
            self._pieces.append(data)
            self._num_held += len(data)
        else:
            for piece in self._inflated(self._inflater, data):
                self._pieces.append(piece)
                self._num_held += len(piece)
        if self._num_held >= HIGH_WATER_BYTES:
            connection.pause()

    def end(self) -> None:
        """Note that the body is whole, if what it was packed into is."""
        try:
            if self._inflater is not None and self._connection is not None:  # else it was given back unread
                self._inflater.finish()
        except Unfinished:
            self.fail(Cut())
        else:
            self.is_whole = True

    def fail(self, fault: HttpFault) -> None:
        if self._fault is None and not self.is_whole:
            self._fault = fault
        self.wake()

    def wake(self) -> None:
        if self._waiter is None or self._waiter.done():
            return  # nobody waits, or who did is being cancelled
        if self._taker is not None and self._fault is None and not self.is_whole:
            while self._pieces:
                if not self._taker(self._take()):
                    self._taker = None
                    break
            else:
                return
        self._waiter.set_result(None)

    @property
    def has_failed(self) -> bool:
        return self._fault is not None

    def _inflated(self, inflater: Inflater, data: bytes) -> list[bytes]:
        try:
            return inflater.feed(data)
        except InflateFault as fault:
            self.fail(_malformed(fault))
            return []

    def _there(self) -> bytes | None:
        """Take what need not be waited for, b"" at the end; None: nothing. Raises the fault behind it."""
        if self._pieces:
            return self._take()
        if self._fault is not None:
            raise self._fault
        return b"" if self.is_whole else None

    def _take(self) -> bytes:
        if self._num_held <= PIECE_BYTES:
            return self._take_all()
        num_pieces = num_bytes = 0
        while num_bytes < PIECE_BYTES:
            num_bytes += len(self._pieces[num_pieces])
            num_pieces += 1
        data = b"".join(self._pieces[:num_pieces])
        del self._pieces[:num_pieces]
        self._num_held -= num_bytes
        if self._num_held < HIGH_WATER_BYTES:
            self._let_come()
        return data

    def _take_all(self) -> bytes:
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._num_held = 0
        self._let_come()
        return data

    def _let_come(self) -> None:
        connection = self._connection
        if connection is not None and connection.is_paused:
            connection.resume()

    def _more(self) -> asyncio.Future[None]:
        """What `wake` ends."""
        connection = self._connection
        loop = asyncio.get_running_loop() if connection is None else connection.loop
        self._waiter = waiter = loop.create_future()
        return waiter


def _malformed(fault: InflateFault) -> Malformed:
    return Malformed(f"a compressed body that cannot be read: {fault}")
