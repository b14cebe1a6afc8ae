"""Server-sent events on one response: framing, headers, one write for all that is ready. Knows no shapes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, cast

from aiohttp import web
from aiohttp.http import StreamWriter

from ionrouter.schema import json

HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # or a proxy in front would collect the stream
}
COMMENT = b": OPENROUTER PROCESSING\n\n"
DONE = b"data: [DONE]\n\n"
# A client that takes nothing for this long holds an endpoint for nobody.
WRITE_TIMEOUT_S = 60.0
SMALL_WRITE = 16 * 1024  # bytes, half of what api.server lets a connection buffer


class ClientGone(Exception):
    """The client left or stopped reading; nobody is there to be told."""


def event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data) + b"\n\n"


def named_event(data: Mapping[str, Any]) -> bytes:
    """An event whose name is its `type`, as Anthropic's clients want it."""
    return b"event: " + str(data["type"]).encode() + b"\n" + event(data)


class SseResponse:
    """A stream that starts with its first write, because until then its status can still change."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._response = web.StreamResponse(headers=HEADERS)
        # Where bytes go as they are, or as HTTP chunks, and nothing else is done to them. None: not yet.
        self._way: tuple[StreamWriter, asyncio.Transport] | None = None

    @property
    def has_started(self) -> bool:
        return self._response.prepared

    def set_headers(self, headers: Mapping[str, str]) -> None:
        """Add headers; without effect once the stream has started."""
        if not self.has_started:
            self._response.headers.update(headers)

    async def write(self, parts: Iterable[bytes]) -> None:
        """Send the parts in one write; raises ClientGone."""
        try:
            if not self.has_started:
                await self._start()
            await self._write(b"".join(parts))
        except TimeoutError:
            self._abandon()
            raise ClientGone(f"read nothing for {WRITE_TIMEOUT_S:.0f} s") from None
        except ConnectionError as error:
            raise ClientGone(str(error)) from None

    @property
    def is_ready(self) -> bool:
        """Ask whether the client has taken all so far, and `write_now` would send."""
        return self._open_way() is not None

    def write_now(self, data: bytes) -> bool:
        """Send without waiting, or nothing at all: False. What the client cannot take yet is buffered."""
        way = self._open_way()
        if way is None:
            return False
        writer, transport = way
        if writer.chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        writer.buffer_size += len(data)  # as writer.write, which waits for nothing, notes it
        writer.output_size += len(data)
        transport.write(data)
        return True

    def _open_way(self) -> tuple[StreamWriter, asyncio.Transport] | None:
        way = self._way
        return way if way and not way[1].is_closing() and not way[1].get_write_buffer_size() else None

    async def _start(self) -> None:
        response, transport = self._response, self._request.transport
        writer = await response.prepare(self._request)
        is_plain = isinstance(writer, StreamWriter) and writer.length is None and not response.compression
        if is_plain and transport is not None:
            self._way = cast(StreamWriter, writer), transport

    async def _write(self, data: bytes) -> None:
        transport = self._request.transport
        if transport is not None and len(data) < SMALL_WRITE and not transport.get_write_buffer_size():
            await self._response.write(data)  # fits the transport's buffer: cannot wait, needs no timer
            return
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await self._response.write(data)

    async def end(self) -> web.StreamResponse:
        try:
            await self._response.write_eof()
        except ConnectionError as error:
            raise ClientGone(str(error)) from None
        return self._response

    @property
    def response(self) -> web.StreamResponse:
        return self._response

    def _abandon(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()
