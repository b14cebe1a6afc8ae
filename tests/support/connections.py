"""An upstream of scripts on the caller's own loop, and how connections to it are asked and read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop

from ionrouter.providers.answer import Answer
from ionrouter.providers.outgoing import Outgoing

GUARD_S = 20.0
OK = b"HTTP/1.1 200 OK\r\n"
HI = OK + b"Content-Length: 2\r\n\r\nhi"
Writer = asyncio.StreamWriter


# The hook that replaces the fixture would number the loops of every other test too.
quiet_loops = pytest.mark.filterwarnings(
    "ignore:Overriding the .event_loop_policy:pytest.PytestDeprecationWarning"
)


@pytest.fixture(
    params=[asyncio.DefaultEventLoopPolicy(), uvloop.EventLoopPolicy()], ids=["asyncio", "uvloop"]
)
def both_loops(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """A module's `event_loop_policy`: the server runs on uvloop, whose transports differ a little."""
    policy: asyncio.AbstractEventLoopPolicy = request.param
    return policy


@dataclass
class Server:
    """Answers each request of each connection with the next script; keeps what it heard."""

    port: int = 0
    heard: list[tuple[int, bytes]] = field(default_factory=list)  # connection, request
    num_connections: int = 0
    closed: list[asyncio.Event] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/x"


Reader = asyncio.StreamReader
Script = bytes | Callable[[Writer, Reader], Coroutine[Any, Any, None]]


@asynccontextmanager
async def serving(*scripts: Script) -> AsyncIterator[Server]:
    """The last script answers all further requests too."""
    server, waiting = Server(), list(scripts)
    tasks: set[asyncio.Task[Any] | None] = set()

    async def handle(reader: Reader, writer: Writer) -> None:
        tasks.add(asyncio.current_task())
        server.num_connections += 1
        number, gone = server.num_connections, asyncio.Event()
        server.closed.append(gone)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0] or 0)
                server.heard.append((number, head + await reader.readexactly(length)))
                script = waiting.pop(0) if len(waiting) > 1 else waiting[0]
                if isinstance(script, bytes):
                    writer.write(script)
                else:
                    await script(writer, reader)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # the client left, or the test is over
        finally:
            gone.set()
            writer.close()

    listener = await asyncio.start_server(handle, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for task in filter(None, tasks):
            task.cancel()
            await asyncio.wait({task})


async def post(out: Outgoing, url: str, body: bytes = b"{}", connect_s: float = 10.0) -> Answer:
    async with asyncio.timeout(GUARD_S):
        return await out.send("POST", url, {"X-A": "b"}, body, allow_http=False, connect_s=connect_s)


async def read(answer: Answer) -> bytes:
    async with asyncio.timeout(GUARD_S):
        body = await answer.read(10**9)
    answer.release(0.0)
    return body


def then_close(*pieces: bytes) -> Script:
    async def play(writer: Writer, reader: Reader) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.close()

    return play


def then_hang(*pieces: bytes) -> Script:
    async def play(writer: Writer, reader: Reader) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        await reader.read()  # until the client leaves

    return play
