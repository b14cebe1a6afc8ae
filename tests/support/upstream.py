"""A scripted HTTP upstream on loopback, at the level of sockets, in its own thread with its own loop.

It knows nothing of ionrouter. It records every request and the moment its client left; what it answers
is a Script (tests/support/wire.py). Usable from sync and async tests and from any number of loops.

    with Upstream(chat_stream(["A", "B"])) as up:      # the answer to every request
        up.enqueue(error(503))                         # ... but the next one first
        ... POST up.base_url + "/chat/completions" ...
        assert up.requests[0].json()["stream"] is True
        assert up.requests[0].wait_closed()            # the client left (or the script closed)
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from tests.support.wire import (
    DONE,
    END,
    Cut,
    Hang,
    Reset,
    Script,
    Step,
    Wait,
    WaitFor,
    chat_json,
    chat_stream,
    chunk,
    chunked,
    completion_json,
    completion_stream,
    embeddings_json,
    error,
    event,
    fireworks_error,
    fireworks_json,
    fireworks_stream,
    http_chunk,
    json_response,
    raw,
    response,
    sse,
    together_error,
    together_json,
    together_stream,
    usage,
)

__all__ = [
    "DONE",
    "END",
    "Cut",
    "Hang",
    "Received",
    "Reset",
    "Responder",
    "Script",
    "Upstream",
    "Wait",
    "WaitFor",
    "chat_json",
    "chat_stream",
    "chunk",
    "chunked",
    "completion_json",
    "completion_stream",
    "embeddings_json",
    "error",
    "event",
    "fireworks_error",
    "fireworks_json",
    "fireworks_stream",
    "http_chunk",
    "json_response",
    "raw",
    "refused_url",
    "response",
    "sse",
    "together_error",
    "together_json",
    "together_stream",
    "usage",
]

GUARD_S = 20.0  # how long a wait may take before the test is wrong; never a bound under test


@dataclass(eq=False)
class Received:
    """One request as it came, and what became of its connection. Times are time.monotonic()."""

    method: str
    path: str
    headers: dict[str, str]  # lower-case names; repeated fields joined by ", "
    raw_headers: list[tuple[str, str]]
    body: bytes
    arrived_at: float
    connection: int  # the same number: the same socket
    closed_at: float | None = None  # when the client left
    sent_bytes: int = 0
    closed: threading.Event = field(default_factory=threading.Event)
    finished: threading.Event = field(default_factory=threading.Event)  # script played or client left

    def json(self) -> Any:
        return json.loads(self.body)

    def wait_closed(self, timeout_s: float = GUARD_S) -> bool:
        """Block until the connection is gone; from async tests use `closed_soon`."""
        return self.closed.wait(timeout_s)

    async def closed_soon(self, timeout_s: float = GUARD_S) -> bool:
        return await asyncio.to_thread(self.closed.wait, timeout_s)


Responder = Script | Callable[[Received], Script]


class Upstream:
    """A server that plays one script a request. Queue first, then `default`; none left is a 500."""

    def __init__(self, default: Responder | None = None, *, tls: ssl.SSLContext | None = None) -> None:
        self.default = default
        self.requests: list[Received] = []
        self.connections = 0
        self.port = 0
        self._tls = tls
        self._queue: deque[Responder] = deque()
        self._arrived = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def enqueue(self, *responders: Responder) -> None:
        """Answer the next requests with these, in order."""
        self._queue.extend(responders)

    def forget(self) -> None:
        """Drop the answers still in the queue."""
        self._queue.clear()

    def wait_for_requests(self, count: int = 1, timeout_s: float = GUARD_S) -> list[Received]:
        """Block until that many requests came; raises TimeoutError."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.requests) >= count, timeout_s):
                raise TimeoutError(f"{len(self.requests)} of {count} requests came")
        return self.requests[:count]

    async def requests_soon(self, count: int = 1, timeout_s: float = GUARD_S) -> list[Received]:
        return await asyncio.to_thread(self.wait_for_requests, count, timeout_s)

    def start(self) -> Upstream:
        self._thread.start()
        assert self._ready.wait(GUARD_S)
        return self

    def close(self) -> None:
        """Drop every connection and stop listening: from here on the port refuses."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(GUARD_S)

    def __enter__(self) -> Upstream:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls, backlog=1024)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            await _Connection(self, self.connections, reader, writer).serve()
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    def _choose(self, request: Received) -> Script:
        with self._arrived:
            self.requests.append(request)
            responder = self._queue.popleft() if self._queue else self.default
            self._arrived.notify_all()
        if responder is None:
            return error(500, {"error": {"message": "the test scripted no answer for this request"}})
        return responder if isinstance(responder, Script) else responder(request)


class _Connection:
    """One socket: requests one after the other, and a watch on the client while a script plays."""

    def __init__(
        self, upstream: Upstream, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.upstream = upstream
        self.number = number
        self.reader = reader
        self.writer = writer
        self.pending = bytearray()  # read while a script played, not yet parsed

    async def serve(self) -> None:
        while (request := await self._read_request()) is not None:
            script = self.upstream._choose(request)
            if not await self._play(script, request):
                return
            if request.headers.get("connection", "").lower() == "close":
                return

    async def _play(self, script: Script, request: Received) -> bool:
        """Play to the end; False when the connection is over."""
        playing = asyncio.ensure_future(self._steps(script, request))
        watching = asyncio.ensure_future(self._client_left())
        try:
            await asyncio.wait({playing, watching}, return_when=asyncio.FIRST_COMPLETED)
            return playing.done() and not watching.done() and playing.result()
        finally:
            for task in (playing, watching):
                task.cancel()
            results = await asyncio.gather(playing, watching, return_exceptions=True)
            request.finished.set()
            if results[0] is not True or results[1] is True:
                self._mark_closed(request)
            else:
                # The answer is whole and the client may keep the socket: note when it goes.
                self._last = request

    async def _steps(self, script: Script, request: Received) -> bool:
        for step in script.steps:
            if not await self._step(step, request):
                return False
        return True

    async def _step(self, step: Step, request: Received) -> bool:
        match step:
            case bytes():
                return await self._send(step, request)
            case Wait(seconds):
                await asyncio.sleep(seconds)
            case WaitFor(gate):
                while not gate.is_set():  # noqa: ASYNC110 (the test sets it from another thread)
                    await asyncio.sleep(0.005)
            case Hang():
                await asyncio.Event().wait()
            case Cut():
                self.writer.close()
                return False
            case Reset():
                linger = struct.pack("ii", 1, 0)
                self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.writer.transport.abort()
                return False
        return True

    async def _send(self, data: bytes, request: Received) -> bool:
        try:
            self.writer.write(data)
            await self.writer.drain()
        except ConnectionError:
            return False
        request.sent_bytes += len(data)
        return True

    async def _client_left(self) -> bool:
        while await self._fill():
            pass
        return True

    async def _fill(self) -> bool:
        try:
            data = await self.reader.read(65536)
        except ConnectionError:
            return False
        self.pending += data
        return bool(data)

    _last: Received | None = None

    def _mark_closed(self, request: Received) -> None:
        request.closed_at = time.monotonic()
        request.closed.set()

    async def _read_request(self) -> Received | None:
        while b"\r\n\r\n" not in self.pending:
            if not await self._fill():
                if self._last is not None:
                    self._mark_closed(self._last)
                return None
        text, _, rest = bytes(self.pending).partition(b"\r\n\r\n")
        lines = text.decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ", 2)
        fields = [(k, v.strip()) for k, _, v in (line.partition(":") for line in lines[1:])]
        headers: dict[str, str] = {}
        for name, value in fields:
            key = name.lower()
            headers[key] = f"{headers[key]}, {value}" if key in headers else value
        self.pending = bytearray(rest)
        body = await self._read_body(headers)
        if body is None:
            return None
        return Received(method, path, headers, fields, body, time.monotonic(), self.number)

    async def _read_body(self, headers: dict[str, str]) -> bytes | None:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await self._read_chunks()
        length = int(headers.get("content-length", "0"))
        return await self._take(length)

    async def _read_chunks(self) -> bytes | None:
        body = b""
        while True:
            while b"\r\n" not in self.pending:
                if not await self._fill():
                    return None
            size_line, _, rest = bytes(self.pending).partition(b"\r\n")
            self.pending = bytearray(rest)
            size = int(size_line.split(b";")[0], 16)
            data = await self._take(size + 2)
            if data is None:
                return None
            if size == 0:
                return body
            body += data[:size]

    async def _take(self, count: int) -> bytes | None:
        while len(self.pending) < count:
            if not await self._fill():
                return None
        data = bytes(self.pending[:count])
        del self.pending[:count]
        return data


def refused_url() -> tuple[str, socket.socket]:
    """A base URL whose port refuses connections, and the socket that keeps it so (close it at the end)."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))  # bound, never listening
    return f"http://127.0.0.1:{held.getsockname()[1]}/v1", held
