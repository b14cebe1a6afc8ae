"""Requests written down instead of sent, for proofs, and answers as they come, for what becomes of none.

Runs in the worker; never imports litellm.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import httpx

from ionrouter.schema import json

CAPTURED: ContextVar[list[dict[str, Any]] | None] = ContextVar("captured", default=None)
CAME: ContextVar[bytearray | None] = ContextVar("came", default=None)  # of a whole answer, so far
MAX_CAME_BYTES = 1024 * 1024


class NeverSent(Exception):
    """Stands where an answer would be."""


def keep_instead(request: Any) -> None:
    """Write an httpx request down where the task asked for it, and raise NeverSent then."""
    if (seen := CAPTURED.get()) is None:
        return
    headers = {name: value for name, value in request.headers.items()}
    text = request.content.decode()
    seen.append({"method": request.method, "url": str(request.url), "headers": headers, "text": text})
    seen[-1]["body"] = json.loads(text)
    raise NeverSent


class Noted(httpx.AsyncByteStream):
    """A whole answer's body whose bytes are kept where the task asked for them."""

    def __init__(self, body: Any, came: bytearray) -> None:
        self._body, self._came = body, came
        came.clear()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._body:
            self._came += data[: MAX_CAME_BYTES - len(self._came)]
            yield data

    async def aclose(self) -> None:
        await self._body.aclose()


def note_body(response: httpx.Response) -> None:
    """Keep what comes of an answer that claims success."""
    if (came := CAME.get()) is not None and response.is_success:
        response.stream = Noted(response.stream, came)
