"""Requests that this server asks itself, by the handlers that answer them over HTTP, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.typedefs import Middleware
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from ionrouter.api.doors import Handler
from ionrouter.api.state import EDGE, GENERATION_ID, KEY, Edge
from ionrouter.store.keys import ApiKey


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request over HTTP would have been answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    request_id: str


class InProcess:
    """An application of its own: its middlewares leave out the doors that look at who comes over the network.

    Its requests count as in flight while they are asked, each for the task that asks it.
    """

    def __init__(
        self, edge: Edge, routes: Mapping[str, Handler], middlewares: Collection[Middleware]
    ) -> None:
        """`routes`: handlers of POST, by path."""
        self._app = web.Application(middlewares=middlewares)
        self._app[EDGE] = edge
        for path, handler in routes.items():
            self._app.router.add_post(path, handler)
        self._app.freeze()

    async def ask(self, path: str, body: bytes, headers: Mapping[str, str], key: ApiKey | None) -> Answer:
        """POST JSON as the holder of a key; an error is an answer, too."""
        writer = _Kept()
        request = _request(path, body, headers, writer)
        if key is not None:
            request[KEY] = key
        response = await self._app._handle(request)
        if not response.prepared:  # large answers are, piece by piece
            await response.prepare(request)
            await response.write_eof()
        return Answer(response.status, response.headers, bytes(writer.data), request[GENERATION_ID])


def _request(path: str, body: bytes, headers: Mapping[str, str], writer: AbstractStreamWriter) -> web.Request:
    told = CIMultiDict({**headers, hdrs.HOST: "localhost", hdrs.CONTENT_TYPE: "application/json"})
    message = RawRequestMessage(
        method=hdrs.METH_POST,
        path=path,
        version=HttpVersion11,
        headers=CIMultiDictProxy(told),
        raw_headers=(),
        should_close=False,
        compression=None,
        upgrade=False,
        chunked=False,
        url=URL(path),
    )
    nobody: Any = _Nobody()
    task: Any = asyncio.current_task()
    loop = asyncio.get_running_loop()
    request = web.Request(message, EMPTY_PAYLOAD, nobody, writer, task, loop)
    request._read_bytes = body
    return request


class _Nobody:
    """The connection of a request that has none."""

    transport = ssl_context = peername = sockname = None


class _Kept(AbstractStreamWriter):
    """Keeps the body that is written to it."""

    def __init__(self) -> None:
        self.data = bytearray()

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        self.data += chunk

    async def write_eof(self, chunk: bytes = b"") -> None:
        self.data += chunk

    async def drain(self) -> None: ...

    def enable_compression(self, encoding: str = "deflate", strategy: int | None = None) -> None: ...

    def enable_chunking(self) -> None: ...

    async def write_headers(self, status_line: str, headers: CIMultiDict[str]) -> None: ...
