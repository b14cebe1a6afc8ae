"""Whole answers that are large, on their way out: row by row, under their length, in memory once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog
from aiohttp import hdrs, web

from ionrouter.api.sse import WRITE_TIMEOUT_S
from ionrouter.pace import Pace
from ionrouter.schema import json
from ionrouter.schema.vectors import WrittenRows

_log = structlog.get_logger(__name__)

PIECE_BYTES = 64 * 1024
_MARK = "\x01rows\x01"


def rows_of(body: Mapping[str, Any]) -> WrittenRows | None:
    """The rows of a large answer's `data`; None: it is like any other."""
    rows = body.get("data")
    return rows if isinstance(rows, WrittenRows) else None


async def send(
    request: web.Request, body: Mapping[str, Any], rows: WrittenRows, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Answer with `rows` for `data`. A client that leaves, or reads nothing for a minute, ends it."""
    before, _, after = json.dumps({**body, "data": [_MARK]}).partition(json.dumps(_MARK))
    response = web.StreamResponse(headers={**headers, hdrs.CONTENT_TYPE: "application/json"})
    response.content_length = len(before) + rows.num_bytes() + len(after)
    try:
        await response.prepare(request)
        pace, piece = Pace(), bytearray(before)
        for row in rows.pieces():
            piece += row
            if len(piece) >= PIECE_BYTES:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await response.write(bytes(piece))
                piece.clear()
            await pace.keep()
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await response.write(bytes(piece) + after)
            await response.write_eof()
    except (ConnectionError, TimeoutError) as error:
        _log.debug("client_left", request=response.headers.get("X-Generation-Id"), reason=str(error))
        if request.transport is not None:
            request.transport.abort()
    return response
