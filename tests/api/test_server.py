"""The HTTP server's sockets: small writes leave at once, whichever loop runs; who asks nothing is let go."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
import uvloop
from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from ionrouter.api.lifecycle import listen
from ionrouter.api.server import EnvelopeRunner
from tests.support.server import GUARD_S


async def nodelay(request: web.Request) -> web.Response:
    assert request.transport is not None
    accepted = request.transport.get_extra_info("socket")
    return web.Response(text=str(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))


async def whole(request: web.Request) -> web.Response:
    try:
        return web.Response(text=str(len(await request.read())))
    except RequestPayloadError:
        return web.Response(status=400)


@asynccontextmanager
async def listening(**options: float) -> AsyncIterator[tuple[str, int]]:
    app = web.Application()
    app.router.add_get("/", nodelay)
    app.router.add_post("/", whole)
    runner = EnvelopeRunner(app, **options)
    await runner.setup()
    try:
        await listen(runner, "127.0.0.1", 0)
        yield runner.addresses[0][:2]
    finally:
        await runner.cleanup()


async def asked() -> str:
    async with (
        listening() as (host, port),
        aiohttp.ClientSession() as session,
        session.get(f"http://{host}:{port}/") as answer,
    ):
        return await answer.text()


@pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_accepted_connections_send_small_pieces_at_once(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Nagle's algorithm would hold a first token back until the client's delayed ACK: 40 ms."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert int(runner.run(asked())) != 0


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: 1\r\n"])
async def test_a_connection_that_asks_nothing_is_closed(sent: bytes) -> None:
    async with listening(head_timeout_s=0.2) as (host, port), asyncio.timeout(GUARD_S):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(sent)
        assert await reader.read() == b""
        writer.close()


async def test_a_connection_that_asked_once_may_wait_with_its_next_request() -> None:
    head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    async with listening(head_timeout_s=0.2) as (host, port), asyncio.timeout(GUARD_S):
        reader, writer = await asyncio.open_connection(host, port)
        for pause_s in (0.5, 0.0):
            writer.write(head)
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(1)
            await asyncio.sleep(pause_s)
        writer.close()


CHUNKED = b"POST %s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
BROKEN = {
    "one packet": (b"5\r\nhello\r\nno length\r\n",),
    "a size, later": (b"5\r\nhello\r\n", b"no length\r\n"),
    "the first size, later": (b"", b"no length\r\n"),
    "an end, later": (b"5\r\nhel", b"loXX\r\n"),
    "a trailer, later": (b"5\r\nhello\r\n", b"0\r\nno\x00trailer\r\n\r\n"),
}


@pytest.mark.parametrize("pieces", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("path", [b"/", b"/unread"])
async def test_a_body_that_is_broken_behind_its_head_is_no_fault_of_ours(
    caplog: pytest.LogCaptureFixture, path: bytes, pieces: tuple[bytes, ...]
) -> None:
    """Its request is refused at once, however late it breaks, and nobody waits for the rest."""
    before = len(pieces) > 1 and path == b"/unread"  # answered before it broke
    async with listening() as (host, port), asyncio.timeout(5):  # aiohttp's own patience is 10 s
        reader, writer = await asyncio.open_connection(host, port)
        for piece in (CHUNKED % path + pieces[0], *pieces[1:]):
            writer.write(piece)
            await asyncio.sleep(0.05)
        answer = await reader.read()  # the server closes
        assert answer.count(b"HTTP/1.") == 1
        assert answer.partition(b" ")[2].startswith(b"404" if before else b"400")
        writer.close()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
