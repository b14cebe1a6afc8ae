"""The HTTP server's sockets: small writes leave at once, whichever loop runs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import aiohttp
import pytest
import uvloop
from aiohttp import web

from ionrouter.api.lifecycle import listen
from ionrouter.api.server import EnvelopeRunner


async def nodelay(request: web.Request) -> web.Response:
    assert request.transport is not None
    accepted = request.transport.get_extra_info("socket")
    return web.Response(text=str(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))


async def asked() -> str:
    app = web.Application()
    app.router.add_get("/", nodelay)
    runner = EnvelopeRunner(app)
    await runner.setup()
    try:
        await listen(runner, "127.0.0.1", 0)
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}/") as answer:
            return await answer.text()
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_accepted_connections_send_small_pieces_at_once(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Nagle's algorithm would hold a first token back until the client's delayed ACK: 40 ms."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert int(runner.run(asked())) != 0
