"""Connection: one HTTP/1.1 connection to an upstream; what is being read from it is an Answer.

Parsing is httptools' (Node.js' llhttp); here is when bytes are read, kept, refused and handed on. An upstream
may send anything: nothing it sends is trusted, buffered without bound, or left over for the next request.
Knows nothing of addresses, pools, JSON or deadlines.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

import httptools

from ionrouter.providers.answer import PIECE_BYTES, Answer
from ionrouter.providers.http_faults import Cut, Disconnected, HttpFault, Malformed, tls_reason

MAX_HEAD_BYTES = 64 * 1024  # status line, headers, 1xx before them; also trailers and chunk framing


class Connection(asyncio.BaseProtocol):
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

    def _read(self, data: bytes | memoryview) -> None:
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


class PlainConnection(Connection, asyncio.BufferedProtocol):
    """Without TLS. `room` is where reads put their bytes: all connections of one loop may share it.

    Each read is done with before the next.
    """

    def __init__(
        self,
        on_free: Callable[[Connection], None],
        on_lost: Callable[[Connection], None],
        room: memoryview,
    ) -> None:
        super().__init__(on_free, on_lost)
        self._room = room

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self._read(self._room[:nbytes])


class SecureConnection(Connection, asyncio.Protocol):
    """Under TLS, which drops what it still holds when the other side closes: so all comes that is there."""

    def data_received(self, data: bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(data), PIECE_BYTES):
            self._read(view[start : start + PIECE_BYTES])
