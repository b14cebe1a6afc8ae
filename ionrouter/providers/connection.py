"""Connection: one HTTP/1.1 connection to an upstream, and Answer, what is being read from it.

Parsing is httptools' (Node.js' llhttp); here is when bytes are read, kept, refused and handed on. An upstream
may send anything: nothing it sends is trusted, buffered without bound, or left over for the next request.
Knows nothing of addresses, pools, JSON or deadlines.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import httptools

from ionrouter.inflate import InflateFault, Inflater, Unfinished, inflater_for
from ionrouter.providers.http_faults import Cut, Disconnected, HttpFault, Malformed, tls_reason

MAX_HEAD_BYTES = 64 * 1024  # status line, headers, 1xx before them; also trailers and chunk framing
HIGH_WATER_BYTES = 128 * 1024  # unread bytes at which reading pauses, and TCP carries the pressure upstream
MAX_REFUSAL_BYTES = 64 * 1024
MAX_INFLATED_BYTES = 256 * 1024 * 1024  # of one body
REFUSAL_S = 5.0  # how long a refusal may take to say why


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

    def __init__(self, connection: Connection) -> None:
        self.status = 0  # 0: the head has not come
        self.headers: dict[str, str] = {}
        self.is_whole = False
        self.queue_s = 0.0  # that its request waited for a connection to be allowed; set by the pool
        self._connection: Connection | None = connection  # None: given back or closed
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
        """Wait for bytes and take all there are; b"" at the end. What came before a cut comes first."""
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
        """Read to the end or to about `max_bytes`, whichever is first."""
        if self.is_whole:  # it came with its head, as most answers do
            return self._take() if self._pieces else b""
        parts = bytearray()
        while len(parts) < max_bytes and (data := await self.readany()):
            parts += data
        return bytes(parts)

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
            if not self._pieces or self._taker(self._take()):
                return
            self._taker = None
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
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._num_held = 0
        connection = self._connection
        if connection is not None and connection.is_paused:
            connection.resume()
        return data

    def _more(self) -> asyncio.Future[None]:
        """What `wake` ends."""
        connection = self._connection
        loop = asyncio.get_running_loop() if connection is None else connection.loop
        self._waiter = waiter = loop.create_future()
        return waiter


class Connection(asyncio.Protocol):
    """Serves one request at a time. `on_free` is told when the next may come, `on_lost` when none can."""

    def __init__(self, on_free: Callable[[Connection], None], on_lost: Callable[[Connection], None]) -> None:
        self.loop = asyncio.get_running_loop()  # every asking is a system call in Python 3.11
        self.num_asked = 0
        self.free_since = 0.0  # of the loop's clock
        self._on_free, self._on_lost = on_free, on_lost
        self._transport: asyncio.Transport | None = None
        self._socket: asyncio.Transport | None = None  # the same, or what TLS reads from
        self._parser = httptools.HttpResponseParser(self)
        self._answer: Answer | None = None
        self._headers: dict[str, str] = {}  # of the head that is being read
        self._num_unproductive = 0  # bytes read since the last one of a body
        self.is_paused = False
        self._ends_with_connection = self._is_spoiled = self._is_informational = False
        self._drain: asyncio.TimerHandle | None = None

    @property
    def is_usable(self) -> bool:
        """Ask whether the next request may go out."""
        return self._transport is not None and not self._transport.is_closing() and self._answer is None

    def ask(self, head: bytes, body: bytes) -> Answer:
        """Send a request; what comes back is in the answer."""
        assert self._transport is not None and self._answer is None
        self.num_asked += 1
        self._num_unproductive, self._ends_with_connection = 0, False
        self._answer = answer = Answer(self)
        self._transport.writelines((head, body))
        return answer

    def let_go(self, answer: Answer, drain_s: float) -> None:
        """Take the connection back from an answer nobody reads any longer."""
        if answer is not self._answer or self._transport is None:
            return
        if self.is_paused:
            self.resume()
        if answer.is_whole:
            self._free()
        elif answer.has_failed or drain_s <= 0:
            self.abort()
        else:
            self._drain = self.loop.call_later(drain_s, self.abort)

    def abort(self) -> None:
        """Close at once; unsent and unread bytes are dropped."""
        if self._transport is not None:
            self._transport.abort()
            self._end(Disconnected())

    def pause(self) -> None:
        """Read no more for now; from the socket, since TLS drops what it holds when the other side closes."""
        if not self.is_paused and self._socket is not None:
            self.is_paused = True
            self._socket.pause_reading()

    def resume(self) -> None:
        if self.is_paused and self._socket is not None and not self._socket.is_closing():
            self.is_paused = False
            self._socket.resume_reading()

    def _free(self) -> None:
        """The exchange is over: keep the connection, if nothing speaks against it."""
        assert self._transport is not None
        self._answer = None
        if self._drain is not None:
            self._drain.cancel()
            self._drain = None
        is_sent = self._transport.get_write_buffer_size() == 0  # it may answer before it has heard all
        if self._is_spoiled or not is_sent or self._transport.is_closing():
            self.abort()
        else:
            self.free_since = self.loop.time()
            self._on_free(self)

    def _end(self, fault: HttpFault) -> None:
        """No byte will come any more."""
        transport, self._transport, self._socket = self._transport, None, None
        answer, self._answer = self._answer, None
        if self._drain is not None:
            self._drain.cancel()
            self._drain = None
        if answer is not None:
            answer.fail(fault)
        if transport is not None:
            self._on_lost(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = self._socket = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it

    def secured(self, transport: asyncio.Transport) -> None:
        """TLS stands between the socket and us from now on."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            self.abort()  # nobody asked
            return
        self._num_unproductive += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._refuse(answer, str(error))
            return
        if self._num_unproductive > MAX_HEAD_BYTES:
            self._refuse(answer, f"{MAX_HEAD_BYTES} bytes of headers and no end")
        elif answer._fault is not None:
            self.abort()
        elif answer.is_whole and answer._connection is None:
            self._free()  # it was only waited for
        else:
            answer.wake()

    def eof_received(self) -> bool:
        if self._answer is not None and self._ends_with_connection and not self._answer.has_failed:
            self._is_spoiled = True
            self._answer.end()
            self._answer.wake()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        answer = self._answer
        why: int | str | None = error.errno if isinstance(error, OSError) else None
        if isinstance(error, ssl.SSLError):
            why = tls_reason(error)
        has_begun = answer is not None and (answer.status > 0 or self._num_unproductive > 0)
        self._end(Cut(why) if has_begun else Disconnected(why))

    def _refuse(self, answer: Answer, why: str) -> None:
        answer.fail(Malformed(why))
        self.abort()

    # httptools. What is raised here would be lost; faults are noted instead.

    def on_message_begin(self) -> None:
        self._headers = {}
        if self._answer is not None and self._answer.is_whole:
            self._is_spoiled = True  # more than was asked for

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note it under its name in lower case; repeated fields are joined by ", " (RFC 9110, 5.3)."""
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers = self._headers
        headers[key] = f"{headers[key]}, {text}" if key in headers else text

    def on_headers_complete(self) -> None:
        answer, status = self._answer, self._parser.get_status_code()
        assert answer is not None
        self._is_informational = 100 <= status < 200
        if answer.is_whole or (self._is_informational and status != 101):
            return
        headers, self._headers = self._headers, {}  # trailers are no part of them
        coding = headers.get("transfer-encoding", "")
        if status == 101 or (coding and coding.rpartition(",")[2].strip().lower() != "chunked"):
            answer.fail(Malformed("a switch of protocols" if status == 101 else "a body without an end"))
            return
        self._ends_with_connection = "content-length" not in headers and not coding
        self._is_spoiled = not self._parser.should_keep_alive()
        answer.begin(status, headers)

    def on_body(self, data: bytes) -> None:
        self._num_unproductive = 0
        if self._answer is not None and not self._answer.is_whole:
            self._answer.feed(data)

    def on_message_complete(self) -> None:
        answer = self._answer
        if answer is not None and not self._is_informational and answer._fault is None:
            answer.end()


def _malformed(fault: InflateFault) -> Malformed:
    return Malformed(f"a compressed body that cannot be read: {fault}")
